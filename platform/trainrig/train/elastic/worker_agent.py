"""The worker agent, in a Ray worker: runs the process of a rank and relays its heartbeats.

Nothing here imports torch: a Ray worker is up as soon as Python and Ray are, and the rank's process
comes from a fork server that had imported everything long before. A worker agent outlives its rank:
when an attempt fails, the ranks of the next are forked at once, and Ray has nothing to start.
"""

import contextlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trainrig.errors import ClusterError
from trainrig.processes.fork_server import ForkedProcess, ForkServer, ProcessDied
from trainrig.processes.process_identity import Process
from trainrig.ray_runtime import ray_private
from trainrig.train.elastic.ipc import RankDone, RankError, RankInfo
from trainrig.train.elastic.messages import Assignment, RankExit

RANK = "trainrig.train.elastic.rank"
# What a rank needs, and what torch and others would import on the way to the first step (0.8 s).
MODULES = (RANK, "torch._dynamo", "trainrig.train.pretrain", "boto3", "tensorboardX")
# the variable with the URL at which the ranks of an attempt meet
RENDEZVOUS = "TRAINRIG_RENDEZVOUS"
CALL_TIMEOUT = 5.0  # s for the coordinator to take a heartbeat
START_TIMEOUT = 60.0  # s for an actor with a fork server to be up; one takes about one
RETRY_SECONDS = 0.2  # s until a coordinator that was lost is asked again


def run_agent(config: Mapping[str, Any]) -> None:
    """Have the rank of this Ray worker do `config["work"]` and, when its attempt has failed, the
    next assignment, until a rank has done its work or the worker group is dismissed."""
    coordinator, group = config["coordinator"], config["attempt"]
    assignment: Assignment | None = Assignment(group, group, config["work"], os.environ[RENDEZVOUS])
    while assignment:
        end = _run_rank(assignment, config["fork_servers"], coordinator)
        if end is None:
            return
        assignment = _call_coordinator(
            coordinator.wait_for_assignment, group, assignment.attempt, end
        )


def _run_rank(
    assignment: Assignment, servers: Mapping[str, Any], coordinator: Any
) -> RankExit | None:
    """How the rank of this worker ended, once it is gone; None if it has done its work."""
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
        # Without a coordinator nobody wants anything; Ray is starting another.
        with contextlib.suppress(ray.exceptions.RayError):
            stop = ray.get(
                coordinator.record_heartbeat.remote(attempt, message), timeout=CALL_TIMEOUT
            )
        process.send(stop)
    return message


def _end_on_command(process: ForkedProcess, coordinator: Any, attempt: int) -> None:
    """A rank that another one left alone may wait for it long."""
    _call_coordinator(coordinator.wait_for_end, attempt)
    process.ask_to_end()


def _call_coordinator(method: Any, *arguments: Any) -> Any:
    """Of a method of the coordinator, however often Ray has to start that."""
    import ray
    import ray.exceptions

    while True:
        try:
            return ray.get(method.remote(*arguments))
        except ray.exceptions.RayActorError:
            time.sleep(RETRY_SECONDS)


def _fork_rank(servers: Mapping[str, Any], info: RankInfo, work: bytes) -> ForkedProcess:
    """By this node's fork server; by one of our own, if the node has none yet or a dead one."""
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


_own_server: ForkServer | None = None  # for as long as this process lives


def _build_rank_info(rendezvous: str) -> RankInfo:
    import ray
    import ray.train

    context = ray.train.get_context()
    return RankInfo(
        rank=context.get_world_rank(),
        world=context.get_world_size(),
        device=find_given_device(),
        rendezvous=rendezvous,
        node=ray.get_runtime_context().get_node_id(),
        agent=Process.here(),
    )


def find_free_endpoint() -> str:
    """A URL at which the ranks of an attempt could meet: at a port of this node that is free."""
    address, port = ray_private.find_address_and_port()
    host = f"[{address}]" if ":" in address else address
    return f"tcp://{host}:{port}"


def find_given_device() -> int | None:
    """Ray has given this worker a GPU of its own, and sight of its neighbours'; None: it has none.

    Raises ClusterError if the one it was given cannot be seen.
    """
    import ray

    own, visible = ray.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return find_device_number([str(each) for each in own], visible)


def find_device_number(own: Sequence[str], visible: str) -> int | None:
    """Which of the `visible` GPUs, as CUDA_VISIBLE_DEVICES has them, is the first of those that are
    `own`; None if none is. Raises ClusterError if it is not among them."""
    if not own:
        return None
    there = [each.strip() for each in visible.split(",")]
    if own[0] not in there:
        raise ClusterError(
            f"Ray gave this worker GPU {own[0]}, which is not among CUDA_VISIBLE_DEVICES="
            f"'{visible}' of its process; do not set that variable for Ray's workers"
        )
    return there.index(own[0])
