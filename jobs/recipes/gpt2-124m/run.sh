#!/usr/bin/env bash
# Run in the root of the repository, with `trainrig` on PATH. Run it again to continue after a stop.
set -euo pipefail
here=$(dirname "$0")

# Data: 10 billion tokens of published web text, and the tokenizer.
hf download HuggingFaceFW/fineweb-edu --repo-type dataset --include "sample/10BT/*" --local-dir data/fineweb-edu
hf download openai-community/gpt2 tokenizer.json tokenizer_config.json --local-dir data/gpt2

trainrig tokenize "$here/tokenize.toml"
trainrig pretrain "$here/pretrain.toml"
trainrig evaluate "$here/evaluate.toml"
