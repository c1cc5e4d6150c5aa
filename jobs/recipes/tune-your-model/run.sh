#!/usr/bin/env bash
# Run in the root of the repository, with `trainrig` on PATH. Run it again to continue after a stop.
set -euo pipefail
here=$(dirname "$0")

# Data: a Hugging Face folder in data/base, and chats as JSON lines in data/chats.jsonl.
trainrig import data/base runs/tune/base --keep
trainrig conversations "$here/conversations.toml"
trainrig check "$here/lora.toml" # memory of a device, before anything starts
trainrig posttrain "$here/lora.toml" # or full.toml, which tunes all weights
trainrig evaluate "$here/evaluate.toml" --set checkpoint=runs/tune/base --set output=runs/tune/scores/base
trainrig evaluate "$here/evaluate.toml"
trainrig export runs/tune/lora runs/tune/exported --keep
