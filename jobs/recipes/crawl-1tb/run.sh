#!/usr/bin/env bash
# Run in the root of the repository, with `trainrig` on PATH. Run it again to continue after a stop.
set -euo pipefail
here=$(dirname "$0")
trap 'echo "the cluster may still be up: trainrig cluster down aws" >&2' ERR

# Before: set BUCKET in the three run files, and fill in cluster/aws.yaml (docs/aws.md).
trainrig cluster up aws
trainrig submit curate "$here/curate.toml" --max-cost "${MAX_COST:?the most USD to spend on a stage}"
trainrig submit tokenizer "$here/tokenizer.toml" --max-cost "$MAX_COST"
trainrig submit tokenize "$here/tokenize.toml" --max-cost "$MAX_COST"
trainrig cluster down aws
