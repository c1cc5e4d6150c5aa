"""Clusters that scale, and what chaos asks of runs."""

import os
import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)

globals().update(runpy.run_path(str(Path(__file__).parents[2] / "chaos" / "conftest.py")))


@pytest.fixture(scope="module")
def scaled():
    """A cluster that begins with a head alone, which this process joins: pools `cpu` of 3 nodes and
    `gpu` of 2, of one CPU each."""
    import ray
    from autoscaled import Autoscaled

    from trainrig.ray_runtime import ray_session

    cluster = Autoscaled(idle_seconds=4, cpu=(1, 3), gpu=(1, 2))
    try:
        with mock.patch.dict(os.environ, RAY_ADDRESS=cluster.address):
            ray.shutdown()  # of another module's fixture; a process joins one cluster at a time
            ray_session.join()
            yield cluster
            ray.shutdown()
    finally:
        cluster.shutdown()
