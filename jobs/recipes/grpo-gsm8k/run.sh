#!/usr/bin/env bash
# Run in the root of the repository, with `trainrig` on PATH. Run it again to continue after a stop.
set -euo pipefail
here=$(dirname "$0")

# Data: an instruction-tuned Hugging Face folder in data/base, and GSM8K's published rows as
# data/gsm8k_train.jsonl and data/gsm8k_test.jsonl.
trainrig import data/base runs/grpo/base --keep
trainrig check "$here/rl.toml" # memory of a device, before anything starts
trainrig evaluate "$here/evaluate.toml" --set checkpoint=runs/grpo/base --set output=runs/grpo/scores/base
trainrig rl "$here/rl.toml"
trainrig evaluate "$here/evaluate.toml"
trainrig compare runs/grpo/scores/base runs/grpo/scores/model
