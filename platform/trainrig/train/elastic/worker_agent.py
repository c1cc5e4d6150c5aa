"""The worker agent, in a Ray worker: runs the process of a rank and relays its heartbeats.

It does not import torch: the Ray worker is up as soon as Python and Ray are, and the rank's process
is forked from a fork server that imported everything in advance. A worker agent outlives its rank:
when an attempt fails, the ranks of the next one are forked at once, and Ray starts nothing.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trainrig.errors import ClusterError
from trainrig.processes.fork_server import ForkedProcess, ForkServer, ProcessDied
from trainrig.processes.process_identity import Process
from trainrig.train.elastic.coordinator import Assignment, RankDone, RankError, RankExit, RankInfo

RANK = "trainrig.train.elastic.rank"
# Modules that fork servers import: a rank's own, and those that torch and others would import on
# the way to the first step (0.8 s).
MODULES = (RANK, "torch._dynamo", "trainrig.train.pretrain", "boto3", "tensorboardX")
# Environment variables with the URL of the rendezvous endpoint, and with the rank that the
# coordinator assigned to this Ray worker.
RENDEZVOUS = "TRAINRIG_RENDEZVOUS"
ASSIGNED_RANK = "TRAINRIG_RANK"
CALL_TIMEOUT = 5.0  # s for the coordinator to accept a heartbeat
START_TIMEOUT = 60.0  # s for the actor of a fork server to be up; usually one
RETRY_SECONDS = 0.2  # s between two calls to a lost coordinator


def run_agent(config: Mapping[str, Any]) -> None:
    """Run the rank of this Ray worker, for one attempt after another.

    The first task is `config["work"]`; after a failed attempt, it waits for the next assignment.
    Returns once a rank has finished its work or the worker group is released.
    """
    coordinator = config["coordinator"]
    group = config["attempt"]
    assignment: Assignment | None = Assignment(group, group, config["work"], os.environ[RENDEZVOUS])
    while assignment:
        end = _run_rank(assignment, config["fork_servers"], coordinator)
        if end is None:
            return
        assignment = call_coordinator(
            coordinator.wait_for_assignment, group, assignment.attempt, end
        )


def _run_rank(
    assignment: Assignment, servers: Mapping[str, Any], coordinator: Any
) -> RankExit | None:
    """Run one rank to its end; return how it failed, or None if it finished its work."""
    info = _build_rank_info(assignment.rendezvous)
    reason: str | RankError
    try:
        with contextlib.closing(_fork_rank(servers, info, assignment.work)) as process:
            threading.Thread(
                target=_end_on_command, args=(process, coordinator, assignment.attempt), daemon=True
            ).start()
            message = _relay(process, assignment.attempt, coordinator)
            if isinstance(message, RankDone):
                return None
            reason = message
            process.end()
    except ProcessDied as died:
        reason = str(died)
    return RankExit(info.rank, info.node, reason, "" if info.rank else find_free_endpoint())


def _relay(process: ForkedProcess, attempt: int, coordinator: Any) -> RankDone | RankError:
    """Relay heartbeats to the coordinator and stop requests to the rank, until the rank exits."""
    import ray
    import ray.exceptions

    while not isinstance(message := process.receive(), RankDone | RankError):
        stop = False
        # Ignore a lost coordinator: Ray is restarting it, and no stop is requested meanwhile.
        with contextlib.suppress(ray.exceptions.RayError):
            stop = ray.get(
                coordinator.record_heartbeat.remote(attempt, message), timeout=CALL_TIMEOUT
            )
        process.send(stop)
    return message


def _end_on_command(process: ForkedProcess, coordinator: Any, attempt: int) -> None:
    """Ask the rank to exit once the attempt is ended: it may be waiting long for a lost peer."""
    call_coordinator(coordinator.wait_for_end, attempt)
    process.ask_to_end()


def call_coordinator(method: Any, *arguments: Any) -> Any:
    """Call `method` of the coordinator until it succeeds, across restarts of that actor."""
    import ray
    import ray.exceptions

    while True:
        try:
            return ray.get(method.remote(*arguments))
        except ray.exceptions.RayActorError:
            time.sleep(RETRY_SECONDS)


def _fork_rank(servers: Mapping[str, Any], info: RankInfo, work: bytes) -> ForkedProcess:
    """Fork a rank from the node's fork server.

    Falls back on a server of this process if the node has none yet or a dead one.
    """
    import ray
    import ray.exceptions

    first = (info, work)
    there = servers.get(info.node)
    with contextlib.suppress(ray.exceptions.RayError, ProcessDied):
        if there is not None:
            address = ray.get(there.get_address.remote(), timeout=START_TIMEOUT)
            return ForkedProcess(address, f"{RANK}:main", first)
    global _own_server
    _own_server = _own_server or ForkServer(*MODULES)
    return ForkedProcess(_own_server.get_address(), f"{RANK}:main", first)


_own_server: ForkServer | None = None  # kept for the life of this process


def _build_rank_info(rendezvous: str) -> RankInfo:
    import ray
    import ray.train

    return RankInfo(
        rank=int(os.environ[ASSIGNED_RANK]),
        world=ray.train.get_context().get_world_size(),
        device=find_given_device(),
        rendezvous=rendezvous,
        node=ray.get_runtime_context().get_node_id(),
        agent=Process.here(),
    )


def find_free_endpoint() -> str:
    """Return a URL for a rendezvous of ranks: tcp:// with a free port of this node."""
    import ray

    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind(("", 0))
        port = listener.getsockname()[1]
    host = f"[{address}]" if family == socket.AF_INET6 else address
    return f"tcp://{host}:{port}"


def find_given_device() -> int | None:
    """Return the index of the GPU that Ray gave this worker, among those visible; None: no GPU.

    The GPUs of other workers on the node are visible too. Raises ClusterError if the given GPU is
    not visible.
    """
    import ray

    own = ray.get_gpu_ids()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return find_device_number([str(gpu) for gpu in own], visible)


def find_device_number(own: Sequence[str], visible: str) -> int | None:
    """Return the index of GPU `own[0]` in `visible`, the value of CUDA_VISIBLE_DEVICES.

    Returns None if `own` is empty. Raises ClusterError if the GPU is not visible.
    """
    if not own:
        return None
    there = [gpu.strip() for gpu in visible.split(",")]
    if own[0] not in there:
        raise ClusterError(
            f"Ray gave this worker GPU {own[0]}, which is not among CUDA_VISIBLE_DEVICES="
            f"'{visible}' of its process; do not set that variable for Ray's workers"
        )
    return there.index(own[0])
