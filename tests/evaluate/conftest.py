"""Fixtures of the evaluation tests: tiny runs and tokens, and a tiny trainrig model."""

import runpy
from pathlib import Path

_HERE = Path(__file__).parent
_SHARED = (_HERE.parent / "train" / "tiny.py", _HERE / "tiny_model.py")
for _file in _SHARED:
    globals().update(runpy.run_path(str(_file)))
