"""Fixtures of the tests of tuning."""

import runpy
from pathlib import Path

globals().update(runpy.run_path(str(Path(__file__).parents[1] / "conftest.py")))
