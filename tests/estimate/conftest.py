"""Tiny tokens and runs, as the tests of training have them."""

import runpy
from pathlib import Path

TRAIN = Path(__file__).parents[1] / "train"
globals().update(runpy.run_path(str(TRAIN / "tiny.py")))
globals().update(runpy.run_path(str(TRAIN / "peaks.py")))
