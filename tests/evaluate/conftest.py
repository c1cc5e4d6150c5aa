"""Tiny runs and tokens, as the tests of training have them, and a tiny model of our own."""

import runpy
from pathlib import Path

_HERE = Path(__file__).parent
_SHARED = (_HERE.parent / "train" / "tiny.py", _HERE / "tiny_model.py")
for _file in _SHARED:
    globals().update(runpy.run_path(str(_file)))
