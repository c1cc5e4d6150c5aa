"""Fixture of the metadata service that the tests of this folder query."""

import runpy
from pathlib import Path

globals().update(runpy.run_path(str(Path(__file__).parents[2] / "metadata_service.py")))
