#!/usr/bin/env bash
# Run in the root of the repository, with `trainrig` on PATH. Run it again to continue after a stop.
set -euo pipefail
here=$(dirname "$0")

# Data: a Hugging Face folder in data/base, and your texts as JSON lines with `text` in data/texts.
trainrig import data/base runs/7b-continue/base --keep
trainrig tokenize "$here/tokenize.toml"
trainrig pretrain "$here/pretrain.toml"
trainrig export runs/7b-continue/model runs/7b-continue/exported --dtype bfloat16 --keep
