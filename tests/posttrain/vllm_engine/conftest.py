"""Tiny models and runs, and a replacement for vLLM."""

import runpy
import sys
from pathlib import Path

import pytest

STAND_IN = str(Path(__file__).with_name("stand_in"))
globals().update(runpy.run_path(str(Path(__file__).parents[2] / "rl" / "conftest.py")))


@pytest.fixture(scope="session")
def stand_in():
    """Return the folder from which the replacement of `vllm` is imported."""
    return STAND_IN


@pytest.fixture
def vllm(stand_in, monkeypatch):
    """Make trainrig import the replacement of vLLM."""
    monkeypatch.syspath_prepend(stand_in)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    import vllm

    assert vllm.__file__.startswith(stand_in)
    yield vllm
    sys.modules.pop("vllm", None)
