import subprocess
import sys
import time

import pytest
from support.waiting import PATIENCE

from trainrig.errors import ClusterReplaced
from trainrig.hardware import INSTANCE_LABEL, MARKET_LABEL, POOL_LABEL
from trainrig.launch.supervise.metered_cost import Kind, LiveNodes
from trainrig.ray_runtime import ray_session


def test_without_a_cluster_there_is_this_machine():
    assert LiveNodes(None).look() == [Kind("local", "", "")]


@pytest.mark.ray
@pytest.mark.slow
def test_live_nodes_are_identified_by_labels_and_no_answer_keeps_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()  # the local Ray of earlier tests
    small = {"num_cpus": 0, "object_store_memory": 80 * 2**20}
    labels = {POOL_LABEL: "cpu", INSTANCE_LABEL: "c7i.8xlarge", MARKET_LABEL: "spot"}
    cluster = Cluster(initialize_head=True, head_node_args=small | {"include_dashboard": False})
    try:
        node = cluster.add_node(**small, labels=labels)
        address = cluster.address
        nodes = LiveNodes(address)
        unlabelled = Kind("", "", "")
        labelled = Kind("cpu", "c7i.8xlarge", "spot")
        assert sorted(nodes.look(), key=str) == [unlabelled, labelled]
        cluster.remove_node(node, allow_graceful=True)
        assert nodes.look() == [unlabelled]
        another = LiveNodes(address)
        another.cluster = "another cluster, which was there before"
        assert another.look() is None
        monkeypatch.setenv("RAY_ADDRESS", address)
        monkeypatch.setenv(ray_session.CLUSTER, "another cluster, which was there before")
        with pytest.raises(ClusterReplaced, match="the cluster of this run is gone") as caught:
            ray_session.join()
        assert caught.value.exit_code == 75 and not ray.is_initialized()
        monkeypatch.setenv(ray_session.CLUSTER, nodes.cluster)
        ray_session.join()
        ray.shutdown()
    finally:
        cluster.shutdown()
    # A process that never reached Ray neither waits for Ray's own timeout nor fails by it.
    code = "import ray, sys; from trainrig.launch.supervise.metered_cost import LiveNodes; "
    code += "print('asks', flush=True); print(LiveNodes(sys.argv[1]).look())"
    command = [sys.executable, "-c", code, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout and stranger.stdout.readline() == "asks\n"
        began = time.monotonic()
        assert nodes.look() is None
        assert stranger.communicate(timeout=PATIENCE)[0] == "None\n"
        assert time.monotonic() - began < 40  # s: when Ray itself would give up
    assert stranger.returncode == 0
