"""Space for workers: decided on tables of nodes, and on raylets with pretended GPUs."""

import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import wait_until

from trainrig.errors import ClusterError, ConfigError
from trainrig.manifest import FileSum
from trainrig.ray_runtime import ray_local, ray_pools, ray_session, split_processing, worker_space
from trainrig.ray_runtime.ray_pools import NodePool
from trainrig.splits import Phase, Split, Work

MEMORY = 80 * 2**20  # bytes of an object store: the least that Ray accepts
HEAD = {"node:__internal_head__": 1.0}
CORE = {"CPU": 1}
DEVICE = {"CPU": 1, "GPU": 1}
CPUS = {"trainrig.io/pool": "cpu"}
NOT_HEAD = {"ray.io/node-id": "!in(0)"}
Nodes = list[dict[str, Any]]


def list_nodes(*resources: Mapping[str, float], labels: Mapping[str, str] | None = None) -> Nodes:
    """Return Ray's records of live nodes, the first of which is the head."""
    return [
        {
            "NodeID": str(number),
            "Resources": dict(having) | ({} if number else HEAD),
            "Labels": labels if number and labels else {},
        }
        for number, having in enumerate(resources)
    ]


@pytest.fixture
def use_nodes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the nodes and pools of the joined cluster."""

    def use(nodes: Callable[[], Nodes], *pools: NodePool, settled: float = 0.0) -> None:
        monkeypatch.setattr(ray_pools, "_list_live_nodes", nodes)
        monkeypatch.setattr(ray_pools, "find_pools", lambda: pools)
        monkeypatch.setattr(ray_local, "is_in_cluster", lambda: True)
        monkeypatch.setattr(ray_pools, "is_settled", lambda seconds: seconds <= settled)
        monkeypatch.setattr(ray_pools, "is_in_placement_group", lambda: False)
        monkeypatch.setattr(worker_space, "LOOK_EVERY", 0.0)

    return use


@pytest.mark.parametrize(
    ("nodes", "pools", "workers", "models", "expected"),
    [
        (list_nodes({"CPU": 4}), (), 2, True, (CORE, {}, 2)),
        (list_nodes({"CPU": 2}, {"CPU": 4}), (), 4, False, (CORE, {}, 4)),
        (list_nodes({"CPU": 2}, {"CPU": 4}), (), 4, True, (CORE, NOT_HEAD, 4)),
        (list_nodes({"CPU": 2}, {"CPU": 4}), (), 5, True, (CORE, {}, 5)),
        (list_nodes({}, {"CPU": 4}, labels=CPUS), (), 3, True, (CORE, CPUS, 3)),
        (list_nodes({"CPU": 8, "GPU": 1}), (), 4, True, (DEVICE, {}, 1)),
        (list_nodes({"CPU": 8}, DEVICE, labels=CPUS), (), 4, True, (DEVICE, {}, 1)),
        (list_nodes({"CPU": 8}, DEVICE, labels=CPUS), (), 1, False, (CORE, CPUS, 1)),
        (list_nodes(DEVICE, {"CPU": 8, "GPU": 2}), (), 2, True, (DEVICE, NOT_HEAD, 2)),
        (list_nodes(DEVICE, {"CPU": 8, "GPU": 2}), (), 3, True, (DEVICE, {}, 3)),
        (list_nodes({}), (NodePool("gpu", DEVICE, {}, 3),), 8, True, (DEVICE, {}, 3)),
    ],
)
def test_models_take_gpus_and_leave_the_head_where_they_can(
    use_nodes: Callable[..., None],
    nodes: Nodes,
    pools: tuple[NodePool, ...],
    workers: int,
    models: bool,
    expected: tuple[Mapping[str, float], Mapping[str, str], int],
) -> None:
    use_nodes(lambda: nodes, *pools)
    place = worker_space.find_place(workers, models, 2**29)
    assert (place.need, place.selector, place.most) == expected
    worker_space.wait_for_workers(workers, "workers", models)


GIB = 2**30
ROOMY = {"CPU": 4, "memory": 8 * GIB}
TIGHT = {"CPU": 4, "memory": 2 * GIB}
NAMELESS = {"CPU": 4}  # a node or pool whose memory is unknown


@pytest.mark.parametrize(
    ("nodes", "pools", "models", "memory", "expected"),
    [
        (list_nodes(ROOMY), (), False, GIB, (GIB, 4)),
        (list_nodes(TIGHT), (), False, GIB, (GIB, 2)),
        (list_nodes(TIGHT), (), False, 3 * GIB, (int(1.2 * GIB), 1)),
        (list_nodes(TIGHT, ROOMY), (), False, 3 * GIB, (int(1.2 * GIB), 4)),
        (list_nodes(TIGHT, ROOMY), (), True, GIB, (GIB, 4)),
        (list_nodes(TIGHT, TIGHT), (), True, GIB, (GIB, 2)),
        (list_nodes(TIGHT, NAMELESS), (), False, GIB, (None, 4)),
        (list_nodes({}), (NodePool("cpu", TIGHT, {}, 1),), False, GIB, (GIB, 2)),
        (list_nodes({}), (NodePool("cpu", TIGHT, {}, 9),), False, GIB, (GIB, 4)),
        (list_nodes(TIGHT), (NodePool("cpu", NAMELESS, {}, 9),), False, GIB, (None, 4)),
        (list_nodes({}), (), False, GIB, (None, 4)),
    ],
)
def test_no_more_workers_run_than_the_memory_of_the_nodes_holds(
    use_nodes: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    nodes: Nodes,
    pools: tuple[NodePool, ...],
    models: bool,
    memory: int,
    expected: tuple[int | None, int],
) -> None:
    use_nodes(lambda: nodes, *pools)
    worker_space._warn_of_memory.cache_clear()
    for _ in range(2):
        place = worker_space.find_place(4, models, memory)
        assert (place.memory, place.most) == expected
    if place.most == 4:
        assert not caplog.messages
    else:
        (line,) = caplog.messages  # once for all phases of a stage
        assert line.startswith(f"workers: {place.most} of 4 run at a time, because each one ")


def test_nodes_that_join_are_waited_for_with_one_line(
    use_nodes: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    looks = iter([list_nodes({}), list_nodes({}), list_nodes({}, {"CPU": 1})])
    last = list_nodes({}, {"CPU": 1}, {"CPU": 1})
    use_nodes(lambda: next(looks, last))
    with caplog.at_level(logging.INFO, "trainrig"):
        worker_space.wait_for_workers(2, "run.toml: workers", models=False)
    first, second = caplog.messages
    assert first.startswith("run.toml: workers: 2 workers of 1 CPU each, but Ray has 0 logical CPU")
    assert first.endswith("add nodes; waiting up to 300 s for nodes to join the cluster")
    assert second.startswith("enough nodes have joined after")


def test_the_wait_for_nodes_ends(use_nodes: Callable[..., None]) -> None:
    use_nodes(lambda: list_nodes({"CPU": 1}))
    reason = (
        r"^workers: 2 workers of 1 CPU each, but Ray has 1 logical CPUs; set workers = 1 or fewer, "
        r"or add nodes; no such nodes joined within 0 s$"
    )
    with pytest.raises(ClusterError, match=reason):
        worker_space.wait_until_fit(lambda: worker_space.describe_lack(2, CORE, "workers"), 0.0)


def test_a_cluster_without_autoscaler_that_no_node_joins_is_not_waited_for(
    use_nodes: Callable[..., None],
) -> None:
    use_nodes(lambda: list_nodes({"CPU": 1}), settled=300)
    reason = (
        r"^workers: 2 workers of 1 CPU each, but Ray has 1 logical CPUs; set workers = 1 or fewer, "
        r"or add nodes\. The cluster has no autoscaler, and no node joined in the last 5 minutes"
    )
    with pytest.raises(ConfigError, match=reason):
        worker_space.wait_for_workers(2, "workers", models=False)


def test_a_run_that_waits_longer_for_nodes_takes_longer_to_call_a_cluster_complete(
    use_nodes: Callable[..., None],
) -> None:
    def find_lack() -> str | None:
        return worker_space.describe_lack(2, CORE, "workers")

    use_nodes(lambda: list_nodes({"CPU": 1}), settled=300)
    with mock.patch.object(time, "sleep", side_effect=InterruptedError):
        with pytest.raises(InterruptedError):  # waits
            worker_space.wait_until_fit(find_lack, 1_800.0)
        with pytest.raises(ConfigError, match="last 5 minutes"):
            worker_space.wait_until_fit(find_lack, 60.0)


def test_workers_in_a_placement_group_request_no_memory(
    use_nodes: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_nodes(lambda: list_nodes(TIGHT))
    monkeypatch.setattr(ray_pools, "is_in_placement_group", lambda: True)
    place = worker_space.find_place(4, False, GIB)
    assert (place.memory, place.most) == (None, 4)


@given(
    memories=st.lists(st.integers(1, 64), min_size=1, max_size=5),
    memory=st.integers(1, 200),
    models=st.booleans(),
)
def test_each_node_that_holds_a_worker_holds_it_with_its_memory(
    memories: list[int], memory: int, models: bool
) -> None:
    nodes = list_nodes(*({"CPU": 2, "memory": gibibytes * GIB} for gibibytes in memories))
    with (
        mock.patch.object(ray_pools, "_list_live_nodes", lambda: nodes),
        mock.patch.object(ray_pools, "find_pools", tuple),
        mock.patch.object(ray_pools, "is_in_placement_group", lambda: False),
    ):
        place = worker_space.find_place(1, models, memory * GIB)
    eligible = [node for node in nodes if not (place.selector and ray_pools._is_head(node))]
    assert all(ray_pools.count_places(node["Resources"], place.need) for node in eligible)


def test_what_no_node_of_a_pool_can_hold_is_refused_at_once(
    use_nodes: Callable[..., None],
) -> None:
    use_nodes(lambda: list_nodes({}), NodePool("cpu", {"CPU": 2}, {}, 1))
    with pytest.raises(ConfigError, match=r"hold 2 \(cpu: 1 nodes of 2 CPU\); set workers = 2"):
        worker_space.wait_for_workers(3, "workers", models=False)


@pytest.mark.parametrize(
    ("nodes", "workers", "tasks", "need", "selector"),
    [
        (list_nodes({"CPU": 4}), 2, 1, {}, {}),
        (list_nodes({"CPU": 4, "GPU": 3}), 2, 1, {"GPU": 1}, {}),
        (list_nodes({"CPU": 4}, {"CPU": 4}), 2, 1, {}, NOT_HEAD),
        (list_nodes({"GPU": 8}, {"CPU": 4, "GPU": 2}), 2, 1, {}, NOT_HEAD),
        (list_nodes({"CPU": 4}, {"CPU": 4, "GPU": 2}), 1, 1, {"GPU": 1}, NOT_HEAD),
        (list_nodes({"CPU": 4}, {"CPU": 4, "GPU": 2}), 1, 2, {}, NOT_HEAD),
    ],
)
def test_tasks_beside_a_run_take_only_gpus_that_it_never_needs(
    use_nodes: Callable[..., None],
    nodes: Nodes,
    workers: int,
    tasks: int,
    need: Mapping[str, float],
    selector: Mapping[str, str],
) -> None:
    use_nodes(lambda: nodes)
    place = worker_space.find_place_beside(workers, tasks)
    assert (place.need, place.selector) == (need, selector)


@pytest.fixture
def small_memory() -> Iterator[None]:
    """Start a Ray of four CPUs whose memory holds two workers, and connect this process to it."""
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()  # ends another module's cluster, as a process joins one cluster at a time
    head = {
        "num_cpus": 4,
        "memory": 5 * GIB // 4,
        "include_dashboard": False,
        "object_store_memory": MEMORY,
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    with mock.patch.dict(os.environ, RAY_ADDRESS=cluster.address):
        ray_session.join()
        # Workers cannot import a test file by its name.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        yield
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        ray.shutdown()
    cluster.shutdown()


def wait_for_workers(folder: Path, count: int) -> None:
    """Take a moment, and longer until `count` workers have begun."""
    (folder / str(os.getpid())).touch()
    wait_until(lambda: len(list(folder.iterdir())) >= count)
    time.sleep(0.5)  # so that more than `count` run at a time if they may


def make_timed_work(folder: Path, at_a_time: int) -> Work:
    """Return work that takes a moment and reports when it began and ended."""

    def work(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        began = time.monotonic()
        wait_for_workers(folder, at_a_time)
        return {"began": began, "ended": time.monotonic()}, {}

    return work


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("small_memory")
@pytest.mark.parametrize("brief", [False, True])
def test_ray_places_workers_by_their_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brief: bool
) -> None:
    # The number of workers is not what limits them here.
    monkeypatch.setattr(worker_space, "_limit_to_memory", lambda most, *_: most)
    splits = [Split(f"split-{number}", {}) for number in range(8)]
    for memory, at_a_time in ((2**29, 2), (2 * GIB, 1)):
        begun = tmp_path / f"begun-{memory}"
        begun.mkdir()
        make_work = functools.partial(make_timed_work, begun, at_a_time)
        phase = Phase(str(tmp_path / str(memory)), make_work, memory=memory)
        split_processing.map_splits(phase, splits, 4, brief=brief)
        times = [record.counts for record in phase.read_results(splits)]
        running = [
            sum(other["began"] <= one["began"] < other["ended"] for other in times) for one in times
        ]
        assert max(running) == at_a_time


class Growing:
    """A head of two CPUs, to which nodes are added."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": MEMORY}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = self._cluster.address
        self.shutdown = self._cluster.shutdown

    def add(self, **resources: int) -> str:
        """Add a node with these resources, and return its id."""
        node = self._cluster.add_node(object_store_memory=MEMORY, **resources)
        return str(node.node_id)


@pytest.fixture(scope="module")
def growing() -> Iterator[Growing]:
    """Start a cluster of a head alone, and connect this process to it."""
    import ray

    ray.shutdown()  # ends another module's cluster, as a process joins one cluster at a time
    cluster = Growing()
    with mock.patch.dict(os.environ, RAY_ADDRESS=cluster.address):
        ray_session.join()
        # Workers cannot import a test file by its name.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        yield cluster
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        ray.shutdown()
    cluster.shutdown()


def find_here() -> dict[str, Any]:
    """Return where this Ray task or actor runs, and with which GPUs."""
    import ray

    context = ray.get_runtime_context()
    return {
        "node": context.get_node_id(),
        "process": os.getpid(),
        "devices": context.get_accelerator_ids()["GPU"],
        "seen": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def make_work(folder: Path) -> Work:
    """Return work that reports where it runs, once two workers have begun."""

    def work(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        wait_for_workers(folder, 2)
        return find_here(), {}

    return work


@pytest.mark.slow
@pytest.mark.ray
def test_models_run_on_the_gpus_of_nodes_that_joined_meanwhile(
    growing: Growing, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import ray

    splits = [Split(f"split-{number}", {}) for number in range(6)]
    connecting = threading.Thread(target=ray_session.connect, args=(4, "workers", True))
    with caplog.at_level(logging.INFO, "trainrig"):
        connecting.start()
        wait_until(lambda: caplog.messages or not connecting.is_alive())
        node = growing.add(num_cpus=3, num_gpus=2)
        connecting.join(120)
    assert not connecting.is_alive()
    assert caplog.messages[0].startswith("workers: 4 workers of 1 CPU each, but Ray has 2 logical")

    begun = tmp_path / "begun"
    begun.mkdir()
    phase = Phase(str(tmp_path / "models"), functools.partial(make_work, begun))
    split_processing.map_splits(phase, splits, 4, models=True)
    seen = [record.counts for record in phase.read_results(splits)]
    assert {where["node"] for where in seen} == {node}
    assert len({where["process"] for where in seen}) == 2
    assert {where["seen"] for where in seen} == {"0", "1"}

    phase = Phase(str(tmp_path / "cores"), functools.partial(make_work, begun))
    split_processing.map_splits(phase, splits, 4)
    assert all(record.counts["devices"] == [] for record in phase.read_results(splits))

    beside: Any = ray.remote(find_here)
    for workers, devices in ((1, 1), (2, 0)):
        place = worker_space.find_place_beside(workers, 1)
        task = beside.options(
            num_cpus=0, num_gpus=place.gpus, label_selector=dict(place.selector)
        ).remote()
        where = ray.get(task, timeout=120)
        assert (where["node"], len(where["devices"])) == (node, devices)


@pytest.fixture
def held_cluster() -> Iterator[Any]:
    """Start a cluster of two CPUs whose work is listed; yield an actor that holds both."""
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()  # ends another module's cluster, as a process joins one cluster at a time
    head = {"num_cpus": 2, "include_dashboard": True, "object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    with mock.patch.dict(os.environ, RAY_ADDRESS=cluster.address):
        ray_session.join()
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        holder: Any = ray.remote(num_cpus=2)(Holder).remote()
        ray.get(holder.hold.remote(), timeout=120)
        yield holder
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        ray.shutdown()
    cluster.shutdown()


class Holder:
    """Work of somebody else that holds CPUs until it is killed."""

    def hold(self) -> None:
        """Return once the CPUs are held."""


@pytest.mark.slow
@pytest.mark.ray
def test_a_stage_says_that_other_work_holds_all_cpus(
    held_cluster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import ray

    monkeypatch.setattr(worker_space, "IDLE_SECONDS", 0.0)
    phase = Phase(str(tmp_path), make_timed_work)
    splits = [Split("split-0", {})]
    stage = threading.Thread(target=split_processing.map_splits, args=(phase, splits, 2))
    stage.start()
    while not caplog.messages:
        assert stage.is_alive()
        time.sleep(0.1)
    assert "0 of 2 CPU free, 1 needed" in caplog.messages[0]
    ray.kill(held_cluster)
    stage.join(120)
    assert len(caplog.messages) == 1 and len(list(phase.read_results(splits))) == 1
