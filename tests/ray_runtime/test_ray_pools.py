import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.two_nodes import two_nodes

from trainrig.ray_runtime import ray_pools
from trainrig.ray_runtime.ray_pools import NodePool, _list_pools, count_places, matches


@pytest.mark.parametrize(
    ("resources", "need", "expected"),
    [
        ({"CPU": 192, "GPU": 8}, {"CPU": 1, "GPU": 1}, 8),
        ({"CPU": 4}, {"CPU": 1, "GPU": 1}, 0),
        ({"CPU": 4.5}, {"CPU": 2}, 2),
        ({}, {"CPU": 1}, 0),
    ],
)
def test_a_node_has_a_place_for_each_whole_need(resources, need, expected):
    assert count_places(resources, need) == expected


def test_a_node_without_labels_matches_requests_without_labels():
    assert matches({}, {}) and not matches({}, {"trainrig.io/pool": "cpu"})
    assert matches({"trainrig.io/pool": "cpu", "a": "b"}, {"trainrig.io/pool": "cpu"})


def test_pools_are_read_from_the_file_of_an_autoscaler_without_its_head():
    config = {
        "max_workers": 3,
        "head_node_type": "head",
        "available_node_types": {
            "head": {"resources": {"CPU": 0}, "max_workers": 0},
            "cpu": {"resources": {"CPU": 32}, "labels": {"a": "b"}, "max_workers": 16},
            "none": {"resources": {"CPU": 1}, "max_workers": 0},
        },
    }
    (pool,) = (NodePool(**settings) for settings in _list_pools(config))
    assert pool == NodePool("cpu", {"CPU": 32}, {"a": "b"}, 3)
    assert str(pool) == "cpu: 3 nodes of 32 CPU"
    assert _list_pools({}) == []


def make_group(name: str, **more: Any) -> dict[str, Any]:
    container = {"resources": {"limits": {"cpu": "1500m", "memory": "3Gi", "nvidia.com/gpu": 2}}}
    pod = {"spec": {"containers": [container]}}
    return {"groupName": name, "minReplicas": 0, "maxReplicas": 3, "template": pod} | more


GROUPS = [
    make_group("limits"),
    make_group("labels", labels={"trainrig.io/pool": "gpu"}, numOfHosts=2),
    make_group(
        "options",
        rayStartParams={"num-cpus": "7", "num-gpus": "0", "resources": '"{\\"Disk\\": 2}"'},
    ),
    make_group("own", resources={"CPU": "4", "memory": "1e9", "Disk": "1.5k"}),
    make_group(
        "requests",
        template={"spec": {"containers": [{"resources": {"requests": {"cpu": 2.5}}}]}},
    ),
]


def test_a_cluster_of_kuberay_has_the_pools_that_rays_autoscaler_reads() -> None:
    from ray.autoscaler._private.kuberay.autoscaling_config import (
        _derive_autoscaling_config_from_ray_cr,
    )

    head = make_group("head")
    spec = {"headGroupSpec": head, "workerGroupSpecs": GROUPS}
    cluster = {"metadata": {"name": "c", "namespace": "n"}, "spec": spec}
    by_ray = _list_pools(_derive_autoscaling_config_from_ray_cr(cluster))
    found = _list_pools(ray_pools.convert_ray_cluster(cluster))
    assert found == by_ray
    assert found[0]["resources"] == {"CPU": 2, "GPU": 2, "memory": 3 * 2**30}


def test_a_cluster_of_kuberay_that_cannot_be_read_has_unknown_pools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_CLUSTER_NAME", "c")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setattr(ray_pools, "SERVICE_ACCOUNT", tmp_path)  # without a token
    assert ray_pools.read_pools() is None


LOOKS = """
from trainrig.ray_runtime import ray_pools, ray_session
ray_session.join()
for seconds in [0, 900] * 2:
    input()
    print(ray_pools.is_settled(seconds), flush=True)
"""


@pytest.mark.ray
@pytest.mark.slow
def test_the_state_api_tells_when_nodes_joined_and_were_lost() -> None:
    with two_nodes() as cluster:
        cluster.start_head(1)
        cluster.add_node("second", 1)
        cluster.wait_for_nodes(2)
        address = {
            "RAY_ADDRESS": f"127.0.0.1:{cluster.gcs_port}",
            "RAY_AUTH_TOKEN_PATH": str(cluster.token),
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        driver = subprocess.Popen(
            [sys.executable, "-c", LOOKS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=kept | address,
        )
        with driver:
            assert driver.stdin and driver.stdout
            looks = list[str]()
            for number in range(4):
                if number == 2:
                    cluster.kill("second")
                    cluster.wait_for_nodes(1)
                print(file=driver.stdin, flush=True)
                looks.append(driver.stdout.readline().strip())
            driver.stdin.close()
    assert looks == ["True", "False"] * 2


@dataclass(frozen=True)
class ListedNode:
    """A node as Ray's State API lists it; the times are seconds ago."""

    joined: float | None
    lost: float | None = None
    state: str = "ALIVE"

    @property
    def start_time_ms(self) -> float | None:
        return self.joined and (time.time() - self.joined) * 1000

    @property
    def end_time_ms(self) -> float | None:
        return self.lost and (time.time() - self.lost) * 1000


@pytest.mark.parametrize(
    ("nodes", "settled"),
    [
        ([ListedNode(900)], True),
        ([ListedNode(900), ListedNode(100)], False),
        ([ListedNode(900), ListedNode(900, 400, "DEAD")], True),
        ([ListedNode(900), ListedNode(900, 100, "DEAD")], False),
        ([ListedNode(None)], False),
        ([ListedNode(900), ListedNode(900, None, "DEAD")], False),
    ],
)
def test_a_node_that_joined_or_was_lost_lately_unsettles_a_cluster(
    monkeypatch: pytest.MonkeyPatch, nodes: list[ListedNode], settled: bool
) -> None:
    monkeypatch.setattr("ray.util.state.list_nodes", lambda **_: nodes)
    assert ray_pools.is_settled(300) is settled


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
def test_a_cluster_without_dashboard_never_counts_as_settled() -> None:
    assert not ray_pools.is_settled(0)
