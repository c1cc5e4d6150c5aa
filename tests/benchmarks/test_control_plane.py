"""Cost of one more node, rank and split for the processes that manage them.

A thousand nodes do not fit on one machine, but what each of them costs the head node and the driver
does. It is measured here at several sizes, so that docs/scale.md can extrapolate from the slope.
"""

import contextlib
import functools
import logging
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pytest
from support.raylets import Raylets
from support.side_by_side import print_result

from trainrig.manifest import FileSum
from trainrig.processes.heartbeats import Heartbeat
from trainrig.processes.process_identity import Process
from trainrig.ray_runtime.ray_pools import ON_HEAD
from trainrig.ray_runtime.ray_session import connect
from trainrig.ray_runtime.split_processing import map_splits
from trainrig.splits import Phase, Split, Work
from trainrig.train.elastic.coordinator import Assignment, Command, Coordinator, RankExit
from trainrig.train.elastic.rank import compute_heartbeat_interval
from trainrig.train.elastic.restart_policy import HangDetector
from trainrig.train.elastic.trainer import MAX_CONCURRENT_CALLS, RayCluster, _probe
from trainrig.train.run_file.worker_settings import Faults, WorkerBounds

pytestmark = [pytest.mark.bench, pytest.mark.ray, pytest.mark.timeout(1800)]

NODES = tuple(map(int, os.environ.get("TRAINRIG_NODES", "2,6,12").split(",")))
WATCHED = 15.0  # s for which the idle head node is measured
LOOKS = 10
HEAD_CORES = 8  # cores of the head node that docs/scale.md recommends for a thousand nodes


@pytest.fixture(scope="module")
def raylets() -> Iterator[Any]:
    """Start a head and two nodes, and connect this process to them."""
    with mock.patch.dict(os.environ):
        there = Raylets()
        os.environ["RAY_ADDRESS"] = there.address
        connect(1, "control plane")
        import ray

        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        yield there
        ray.shutdown()
        there.shutdown()


def read_cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds that `process` has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def find_gcs() -> psutil.Process:
    """Return the GCS server process of the Ray cluster that started last."""
    found = [p for p in psutil.process_iter(["name"]) if p.info["name"] == "gcs_server"]
    return max(found, key=lambda process: process.create_time())


def fit_slope(points: Mapping[int, float]) -> float:
    """Return the slope of the least-squares line through `points`."""
    return float(np.polyfit(list(points), list(points.values()), 1)[0])


def test_cost_of_a_node_for_the_head_and_the_supervisor(raylets: Any) -> None:
    import ray

    server = find_gcs()
    cluster = RayCluster(WorkerBounds(1, 1))
    busy: dict[int, float] = {}  # share of a core that the head node's server uses
    memory: dict[int, float] = {}
    poll: dict[int, float] = {}  # CPU seconds of this process
    for count in NODES:
        while len(raylets.nodes) < count:
            raylets.come()
        alive = 0
        while alive < count + 1:
            alive = sum(node["Alive"] for node in ray.nodes())
        cluster.list_nodes()  # starts the per-node state of each new node
        ray.get([s.address.remote() for s in cluster._warm_actors.fork_servers.by_node.values()])
        before = read_cpu_seconds(server)
        time.sleep(WATCHED)
        busy[count] = (read_cpu_seconds(server) - before) / WATCHED
        memory[count] = server.memory_info().rss
        before = time.process_time()
        for _ in range(LOOKS):
            cluster.list_nodes()
        poll[count] = (time.process_time() - before) / LOOKS
    print_result(
        benchmark="what a node costs",
        nodes=NODES,
        gcs_share_of_a_core=[round(value, 4) for value in busy.values()],
        gcs_share_a_node=round(fit_slope(busy), 5),
        gcs_bytes_a_node=round(fit_slope(memory)),
        look_cpu_ms=[round(1e3 * value, 2) for value in poll.values()],
        look_cpu_ms_a_node=round(1e3 * fit_slope(poll), 3),
    )
    assert 1_000 * fit_slope(busy) < HEAD_CORES


def make_heartbeat(rank: int, step: int = 1) -> Heartbeat:
    """Return a heartbeat of a rank in the middle of a run."""
    processes = (Process.here(), Process.here())
    return Heartbeat(rank, processes, "f" * 56, step, step, "train", True, 1.5)


def make_exit(rank: int) -> RankExit:
    """Return the exit message that a worker agent sends after its rank was killed."""
    return RankExit(rank, "f" * 56, "killed by SIGKILL", "" if rank else "tcp://127.0.0.1:29500")


def test_cost_of_a_rank_for_the_coordinator_and_the_supervisor(raylets: Any) -> None:
    import ray

    ranks = 8_000
    actor: Any = ray.remote(Coordinator)
    coordinator = actor.options(
        num_cpus=0, resources=ON_HEAD, max_concurrency=MAX_CONCURRENT_CALLS
    ).remote()
    ray.get(coordinator.poll.remote(1, Command.TRAIN, 0, 0.0))
    (office,) = (
        process
        for process in psutil.Process().children(recursive=True)
        if "ray::Coordinator" in " ".join(process.cmdline())
    )
    takes = []
    for step in range(3):
        before = read_cpu_seconds(office)
        ray.get(
            [
                coordinator.record_heartbeat.remote(1, make_heartbeat(rank, step))
                for rank in range(ranks)
            ]
        )
        takes.append((read_cpu_seconds(office) - before) / ranks)
    hangs = HangDetector(Faults(), ranks, time.monotonic())
    looked = []
    seen = []
    answered = []
    for _ in range(LOOKS):
        before = time.process_time()
        office_before = read_cpu_seconds(office)
        heartbeats = ray.get(coordinator.poll.remote(1, Command.TRAIN, 0, 0.0)).heartbeats
        looked.append(time.process_time() - before)
        answered.append(read_cpu_seconds(office) - office_before)
        before = time.process_time()
        hangs.update(heartbeats, time.monotonic())
        seen.append(time.process_time() - before)
    waits = [coordinator.wait_for_end.remote(1) for _ in range(ranks)]
    ray.get(coordinator.poll.remote(1, Command.TRAIN, 0, 0.0))
    began = time.perf_counter()
    before = read_cpu_seconds(office)
    ray.get(coordinator.poll.remote(1, Command.END, 0, 0.0))
    ray.get(waits)
    stand = [coordinator.wait_for_assignment.remote(1, 1, make_exit(rank)) for rank in range(ranks)]
    while len(ray.get(coordinator.poll.remote(1, Command.END, ranks - 1, 1.0)).exits) < ranks:
        pass
    ended = time.perf_counter() - began
    began = time.perf_counter()
    coordinator.assign.remote(Assignment(1, 2, bytes(10_000), "tcp://node:1"))
    ray.get(stand)
    ordered = time.perf_counter() - began
    changed = (read_cpu_seconds(office) - before) / ranks
    ray.kill(coordinator)
    print_result(
        benchmark="what a rank costs",
        ranks=ranks,
        beat_us_of_the_office=round(1e6 * statistics.median(takes), 1),
        look_ms_of_the_office=round(1e3 * statistics.median(answered), 1),
        look_ms_of_the_driver=round(1e3 * statistics.median(looked), 1),
        hangs_ms_of_the_driver=round(1e3 * statistics.median(seen), 1),
        seconds_until_all_have_ended=round(ended, 2),
        seconds_until_all_have_an_order=round(ordered, 2),
        end_and_order_us_of_the_office=round(1e6 * changed, 1),
    )
    assert ranks * statistics.median(takes) < compute_heartbeat_interval(ranks)


def do_nothing(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
    """Return the result of a split that has no work."""
    return {}, {}


def load_nothing() -> Work:
    """Return a work function that loads nothing."""
    return do_nothing


@pytest.mark.parametrize("brief", [False, True], ids=["by Ray Data", "by tasks"])
def test_cost_of_a_split_for_the_driver(raylets: Any, brief: bool, tmp_path: Path) -> None:
    cpu = {}
    wall = {}
    for count in (16, 250, 1_000, 2_000):
        phase = Phase(str(tmp_path / str(count)), functools.partial(load_nothing))
        splits = [Split(f"split-{number:05d}", {"number": number}) for number in range(count)]
        before = time.process_time()
        began = time.perf_counter()
        map_splits(phase, splits, 2, brief=brief)
        cpu[count] = time.process_time() - before
        wall[count] = time.perf_counter() - began
    print_result(
        benchmark="what a split costs the driver",
        by="tasks" if brief else "Ray Data",
        splits=list(cpu),
        cpu_seconds=[round(value, 2) for value in cpu.values()],
        cpu_ms_a_split=round(1e3 * fit_slope(cpu), 3),
        wall_seconds=[round(value, 2) for value in wall.values()],
    )
    # A split costs no more among many than among few. 250 splits also pay the startup costs.
    assert cpu[2_000] / 2_000 < 1.5 * cpu[250] / 250


def test_a_thousand_endpoints_are_probed_in_parallel() -> None:
    """Probe a thousand endpoints, a hundred of which do not answer: 100 s if probed in sequence."""
    logging.getLogger("trainrig").setLevel(logging.ERROR)
    with contextlib.ExitStack() as doors:
        # The listen queue is full, so a connection is neither accepted nor refused.
        deaf = doors.enter_context(socket.socket())
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        waiting = [doors.enter_context(socket.socket()) for _ in range(2)]
        for door in waiting:
            door.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                door.connect(deaf.getsockname())
        open_door = doors.enter_context(socket.socket())
        open_door.bind(("127.0.0.1", 0))
        open_door.listen(1_024)
        over = threading.Event()

        def welcome() -> None:
            while not over.is_set():
                open_door.accept()[0].close()

        threading.Thread(target=welcome, daemon=True).start()
        places = [open_door.getsockname()] * 900 + [deaf.getsockname()] * 100
        began = time.perf_counter()
        answers = _probe(places)
        seconds = time.perf_counter() - began
        over.set()
    assert answers == [True] * 900 + [False] * 100
    print_result(
        benchmark="a thousand doors, a hundred deaf",
        wall_seconds=round(seconds, 2),
    )
