"""Fixtures of clusters that scale, with those of the chaos tests."""

import os
from unittest import mock

import pytest


@pytest.fixture(scope="module")
def scaled():
    """Start a cluster with a head alone, and connect this process to it.

    Its pools are `cpu` of 3 nodes and `gpu` of 2, with one CPU each.
    """
    import ray
    from support.launch.autoscaled import Autoscaled

    from trainrig.ray_runtime import ray_session

    cluster = Autoscaled(idle_seconds=4, cpu=(1, 3), gpu=(1, 2))
    try:
        with mock.patch.dict(os.environ, RAY_ADDRESS=cluster.address):
            # Ends another module's cluster, as a process joins one cluster at a time.
            ray.shutdown()
            ray_session.join()
            yield cluster
            ray.shutdown()
    finally:
        cluster.shutdown()
