"""Tiny models and runs, and a replacement for vLLM."""

import sys
from pathlib import Path

import pytest
from support.rollout_fixtures import make_run, problems

__all__ = ["make_run", "problems"]

STAND_IN = str(Path(__file__).with_name("stand_in"))


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
