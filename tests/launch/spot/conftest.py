"""The metadata service that tests of this folder ask."""

import runpy
from pathlib import Path

globals().update(runpy.run_path(str(Path(__file__).parents[2] / "metadata_service.py")))
