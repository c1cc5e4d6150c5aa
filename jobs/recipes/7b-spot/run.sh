#!/usr/bin/env bash
# Run in the root of the repository, with `trainrig` on PATH. Run it again to continue after a stop.
set -euo pipefail
here=$(dirname "$0")
trap 'echo "the cluster may still be up: trainrig cluster down aws" >&2' ERR

# Before: set BUCKET in pretrain.toml, and fill in cluster/aws.yaml (docs/aws.md). README.md has the rest.
# The tokens are those of the recipe crawl-1tb, or any folder that `trainrig tokenize` wrote.
trainrig cluster check aws
trainrig cluster up aws
trainrig submit pretrain "$here/pretrain.toml" --max-cost "${MAX_COST:?the most USD to spend}"
trainrig cluster down aws
