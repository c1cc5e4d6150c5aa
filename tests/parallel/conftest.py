"""Groups of ranks, shared with the tests of training."""

import runpy
from pathlib import Path

globals().update(runpy.run_path(str(Path(__file__).parents[1] / "train" / "tiny.py")))
