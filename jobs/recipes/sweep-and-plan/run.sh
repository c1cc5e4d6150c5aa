#!/usr/bin/env bash
# Run in the root of the repository, with `trainrig` on PATH. Run it again to continue after a stop.
set -euo pipefail
here=$(dirname "$0")

# Data: the tokens of the recipe 1b-chinchilla.
trainrig sweep "$here/sweep.toml"
trainrig fit runs/laws/sweep --out runs/laws/web
trainrig plan "$here/plan.toml"
trainrig check runs/laws/planned.toml --device h100
