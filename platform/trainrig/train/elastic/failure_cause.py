"""Why attempts start and fail: the record of each start, and the cause of a failure.

The cause is found from the errors of the ranks, or from the ranks that the others wait for.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from trainrig.errors import InputError
from trainrig.parallel.worker_layout import WorkerLayout
from trainrig.processes.fork_server import MEMORY_RAN_OUT
from trainrig.processes.heartbeats import Heartbeat
from trainrig.train.checkpoint import DamagedCheckpoint
from trainrig.train.elastic.restart_policy import Failure, Hang
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt

# Parts of the messages of torch's allocators and the operating system when memory runs out.
NO_MEMORY = (
    "out of memory",
    "OutOfMemoryError",
    "can't allocate memory",
    "Cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "MemoryError",
    "std::bad_alloc",
)
# Parts of the messages of CUDA and its libraries for a broken device, not a broken program.
BROKEN_DEVICE = (
    "uncorrectable",  # an error of the device's memory or links
    "hardware error",
    "CUDA error: unknown error",
    "CUDA-capable device(s) is/are busy or unavailable",
    "GPU is lost",
    "this rank was given GPU",  # parallel/mesh.py
)
# Ray's exit type of a process that it ended because memory ran out.
MEMORY_EXIT = "NODE_OUT_OF_MEMORY"
# Reason of a rank whose whole node is gone. Another attempt elsewhere would not meet it.
LOST_NODE = "its node is lost"
# Parts of the messages of a rank that lost a peer or waited for it in vain (from c10d, gloo and
# NCCL). "gloo" or "NCCL" alone would also match a rank's own mistakes, such as "Duplicate GPU
# detected" or mismatched sizes in a collective.
OWN_MISTAKE = "enforce fail at"  # gloo's words for invalid arguments of a collective
LOST_PEER = (
    "gloo/transport",
    "gloo/rendezvous",
    "Gloo connectFullMesh failed",
    "Connection closed by peer",
    "Connection closed by remote peer",
    "Connection reset by peer",
    "ncclRemoteError",
    "remote process exited",
    "NCCL communicator was aborted",
    "Watchdog caught collective operation timeout",
)


def find_cause(
    failures: Mapping[int, Exception], dead: Mapping[int, str], steps: Mapping[int, int], step: int
) -> Failure:
    """Return the failure that caused `failures`, the exceptions by rank.

    Raises it instead if it is an InputError, which the user must fix. A broken device is the cause
    first, then a dead process; broken collectives are consequences of either. Of several dead
    processes, the first one that ran out of memory is named. A node is blamed only if exactly one
    rank died and its node is still alive: a collective that times out ends sound ranks too, all
    together.

    Args:
        failures: What each rank raised.
        dead: How the processes of other ranks died.
        steps: Updates that ranks had made when they raised, in the order in which they raised.
        step: Updates made by the group, as far as is known.
    """
    for error in failures.values():
        if isinstance(error, DamagedCheckpoint):
            return Failure(format_last_line(error), "Ray", step, damaged=True)
        if isinstance(error, InputError):
            raise error from None
    if broken := [rank for rank, error in failures.items() if _is_broken_device(error)]:
        rank = min(broken)
        line = format_last_line(failures[rank])
        # Without `exception`, as it is no repeatable error: another device may work.
        return Failure(f"rank {rank}: {line}", "Ray", steps.get(rank, step), rank=rank)
    if dead:
        short = [rank for rank, how in dead.items() if MEMORY_RAN_OUT in how]
        rank = min(short or dead)
        others = f" (and {len(dead) - 1} more)" if len(dead) > 1 else ""
        problem = f"the process of rank {rank} died{others}: {dead[rank]}"
        alone = len(dead) == 1 and not short and LOST_NODE not in dead[rank]
        return Failure(problem, "Ray", step, memory=bool(short), rank=rank if alone else None)
    own = [rank for rank, error in failures.items() if not follows_peer(str(error))]
    raised_first = (rank for rank in steps if rank in own)
    rank = next(raised_first, min(own or failures))
    at = steps.get(rank, step)
    if not own:
        problem = f"rank {rank} lost its connection to another: a process or a node is gone"
        return Failure(problem, "Ray", at)
    line = format_last_line(failures[rank])
    memory = is_out_of_memory(_describe_error(failures[rank]))
    problem = f"rank {rank}: {line}"
    if followed := len(failures) - len(own):
        problem += f" ({followed} more lost {'its' if followed == 1 else 'their'} connection then)"
    return Failure(problem, "Ray", at, exception=line, memory=memory)


def find_absent_ranks(
    events: Iterable[Mapping[str, Any]], attempt: int, world: int
) -> frozenset[int]:
    """Return the ranks of a hung `attempt` that do not wait in a collective.

    They are the ranks that the others wait for: of the `world` ranks, those that reported no
    collective that they wait in. Returns an empty set if no rank or every rank waits: then the
    network may have failed, which looks alike from both ends.
    """
    waiting = {
        event["rank"]
        for event in events
        if event["event"] == "collectives_dumped"
        and event["attempt"] == attempt
        and event["waits_in"]
    }
    return frozenset(range(world)) - waiting if waiting else frozenset()


def find_hang_cause(
    hang: Hang, absent: frozenset[int], heartbeats: Mapping[int, Heartbeat], step: int
) -> Failure:
    """Return the failure for `hang`, attributed to a node if all `absent` ranks are on it.

    `absent`: the ranks that the others wait for. `heartbeats`: the newest of each rank. `step`:
    updates made by the group, as far as is known.
    """
    nodes = {heartbeats[rank].node for rank in absent if rank in heartbeats}
    if len(nodes) != 1 or not absent <= heartbeats.keys():
        return Failure(str(hang), "heartbeats", step)
    rank = min(absent)
    others = f" and {len(absent) - 1} more of its node" if len(absent) > 1 else ""
    problem = f"{hang}; the others wait for rank {rank}{others}"
    return Failure(problem, "heartbeats", step, rank=rank, node=nodes.pop())


def is_dead_worker(error: BaseException) -> bool:
    """Return whether `error` is Ray Train's report that it lost a worker, not the worker's error.

    The report holds the error of the failed health check, which names the dead actor.
    """
    from ray.exceptions import OutOfMemoryError, RayActorError

    found = getattr(error, "health_check_failure", error)
    return isinstance(found, RayActorError | OutOfMemoryError)


def ended_for_memory(error: BaseException) -> bool:
    """Return whether Ray ended the process that `error` tells of because memory ran out.

    Ray raises an OutOfMemoryError for a task. The error of a dead actor tells its exit type.
    """
    from ray.exceptions import OutOfMemoryError

    found = getattr(error, "health_check_failure", error)
    return isinstance(found, OutOfMemoryError) or MEMORY_EXIT in str(found)


def _is_broken_device(error: BaseException) -> bool:
    said = _describe_error(error)
    return not is_out_of_memory(said) and any(words in said for words in BROKEN_DEVICE)


def _describe_error(error: BaseException) -> str:
    """Return type and whole message of `error`: the last line alone may be advice."""
    return f"{type(error).__name__}: {error}"


def follows_peer(said: str) -> bool:
    """Return whether the error message `said` shows that a rank failed because a peer was lost."""
    return OWN_MISTAKE not in said and any(words in said for words in LOST_PEER)


def is_out_of_memory(said: str) -> bool:
    """Return whether the error message `said` shows that memory ran out."""
    return any(words in said for words in NO_MEMORY)


def format_last_line(error: BaseException) -> str:
    """Return the type and the last line of the message of `error`."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def describe_out_of_memory(said: str) -> str:
    """Return which node ran out of memory, in one line, from Ray's long message `said`."""
    found = re.search(r"Memory on the node \(IP: ([^,)]+).*? was (\S+) used / (\S+)", said)
    node = f"node {found[1]} ran out of memory ({found[2]} of {found[3]})" if found else "no memory"
    return f"{node}: Ray ended the attempt to free some"


log = logging.getLogger(__name__)

OTHER_BITS = (
    "gradients are rounded differently from here on, but samples, their order and the "
    "schedule stay the same"
)


def record_start(
    folder: RunFolder,
    attempt: TrainingAttempt,
    layout: WorkerLayout,
    workers: int,
    why: str,
) -> None:
    """Record the start of `attempt`, and a change of its layout since the attempt before.

    `why`: the reason of the attempt, such as "start" or "fault".
    """
    events = folder.read_events()
    now = layout.describe()
    started = [event for event in events if event["event"] == "attempt_started"]
    before = started[-1].get("layout", now) if started else now
    where = {"attempt": attempt.number, "step": attempt.resumed_step}
    if before != now:
        folder.record("layout_changed", **where, before=before, layout=now, bits=OTHER_BITS)
        log.warning(
            "from step %d on, the run uses %s (workers: %d) instead of %s: %s",
            *(attempt.resumed_step, now, workers, before, OTHER_BITS),
        )
    folder.record("attempt_started", **where, workers=workers, why=why, layout=now)
