"""Fixtures of the training tests: tiny token shards and runs."""

import runpy
from pathlib import Path

TRAIN = Path(__file__).parents[1] / "train"
globals().update(runpy.run_path(str(TRAIN / "tiny.py")))
globals().update(runpy.run_path(str(TRAIN / "peaks.py")))
