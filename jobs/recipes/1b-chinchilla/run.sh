#!/usr/bin/env bash
# Run in the root of the repository, with `trainrig` on PATH. Run it again to continue after a stop.
set -euo pipefail
here=$(dirname "$0")

# Data: Parquet files with a column `text` in data/texts, 21 billion tokens or more.
trainrig tokenizer "$here/tokenizer.toml"
trainrig tokenize "$here/tokenize.toml"
trainrig pretrain "$here/pretrain.toml"
trainrig export runs/1b/model runs/1b/exported --keep
