import pytest

from trainrig.ray_runtime import ray_pools
from trainrig.ray_runtime.ray_pools import NodePool
from trainrig.scaling.sweep.ray_tune import _find_lack
from trainrig.scaling.sweep.sweep_run_file import Trials

POOLS = (NodePool("cpu", {"CPU": 8}, {}, 4), NodePool("gpu", {"CPU": 2, "GPU": 1}, {}, 1))
SHOWN = "(cpu: 4 nodes of 8 CPU; gpu: 1 nodes of 2 CPU and 1 GPU)"


@pytest.mark.parametrize(
    ("trials", "lack"),
    [
        ({}, None),
        ({"cpus": 8}, None),
        ({"cpus": 2, "gpus": 0.5}, None),
        ({"cpus": 9}, f"trials.cpus = 9, but no node that may be added {SHOWN} has more than 8 "),
        ({"gpus": 2}, f"trials.gpus = 2, but no node that may be added {SHOWN} has more than 1 "),
        ({"cpus": 8, "gpus": 1}, "trials.cpus = 8 and trials.gpus = 1, but no node that may be "),
    ],
)
def test_a_trial_needs_one_node_that_is_there_or_may_come(monkeypatch, trials, lack):
    monkeypatch.setattr(ray_pools, "find_pools", lambda: POOLS)
    monkeypatch.setattr(ray_pools, "_list_live_nodes", lambda: [])  # all pools are empty
    found = _find_lack(Trials(**trials))
    assert found is None if lack is None else found.startswith(lack)
