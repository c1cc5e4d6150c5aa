"""Determines why a worker group failed: by the errors of its ranks, or by what they wait for."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from trainrig.errors import InputError
from trainrig.processes.fork_server import MEMORY_RAN_OUT
from trainrig.processes.heartbeats import Heartbeat
from trainrig.train.checkpoint import DamagedCheckpoint
from trainrig.train.elastic.restart_policy import Failure, Hang

# In what torch's allocators and the system say when there is no more memory.
NO_MEMORY = (
    "out of memory",
    "OutOfMemoryError",
    "can't allocate memory",
    "Cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "MemoryError",
    "std::bad_alloc",
)
# In what CUDA and its libraries say when a device is broken, and not the program.
BROKEN_DEVICE = (
    "uncorrectable",  # of its memory or its links
    "hardware error",
    "CUDA error: unknown error",
    "CUDA-capable device(s) is/are busy or unavailable",
    "GPU is lost",
    "this rank was given GPU",  # parallel/mesh.py
)
# How a rank died whose whole node is gone: no fault that another attempt would meet there.
LOST_NODE = "its node is lost"
# In what a rank raises when it lost another, or waited for it in vain (words of c10d, gloo, NCCL).
# Neither "gloo" nor "NCCL" alone is among them: a rank's own mistakes bear them too, "Duplicate GPU
# detected" say, or sizes in a collective that do not fit.
OWN_MISTAKE = "enforce fail at"  # what gloo says of the arguments of a collective
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
    """The failure behind `failures`, by rank. Raises it if it is for the user to mend.

    A broken device is the cause, else a dead process, and broken collectives follow it; of several,
    one that had too little memory. It is laid to a node only where one rank alone died, and its
    node did not: a collective that times out ends sound ranks, all together.

    `dead`: how a rank's process died; `steps`: updates that ranks had done when they raised, those
    of the rank that raised first before others;
    `step`: as far as is known of the group.
    """
    for error in failures.values():
        if isinstance(error, DamagedCheckpoint):
            return Failure(format_last_line(error), "Ray", step, damaged=True)
        if isinstance(error, InputError):
            raise error from None
    if broken := [rank for rank, error in failures.items() if _is_broken_device(error)]:
        rank = min(broken)
        line = format_last_line(failures[rank])
        # No exception to be met again: elsewhere it may go well.
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
    """Of the `world` ranks of a hung `attempt`, those that have not said that they wait in a
    collective: those that came to it wait, and who says nothing, or waits in none, did not come.

    Empty if no rank has said so, or all have: a network that fails looks alike from both its ends.
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
    """The failure that `hang` is: by a node, if all of `absent`, for which the others wait, are
    there by the newest heartbeats of the ranks. `step`: as far as is known of the group."""
    nodes = {heartbeats[rank].node for rank in absent if rank in heartbeats}
    if len(nodes) != 1 or not absent <= heartbeats.keys():
        return Failure(str(hang), "heartbeats", step)
    rank = min(absent)
    others = f" and {len(absent) - 1} more of its node" if len(absent) > 1 else ""
    problem = f"{hang}; the others wait for rank {rank}{others}"
    return Failure(problem, "heartbeats", step, rank=rank, node=nodes.pop())


def _is_broken_device(error: BaseException) -> bool:
    said = _describe_error(error)
    return not is_out_of_memory(said) and any(words in said for words in BROKEN_DEVICE)


def _describe_error(error: BaseException) -> str:
    """All that `error` says: its last line may be advice."""
    return f"{type(error).__name__}: {error}"


def follows_peer(said: str) -> bool:
    """Whether a rank that said so was well before another was lost."""
    return OWN_MISTAKE not in said and any(words in said for words in LOST_PEER)


def is_out_of_memory(said: str) -> bool:
    """Whether a rank that said so had too little memory."""
    return any(words in said for words in NO_MEMORY)


def format_last_line(error: BaseException) -> str:
    """Type and last line of `error`."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def describe_out_of_memory(said: str) -> str:
    """Which node had too little, from what Ray `said` of it at length."""
    found = re.search(r"Memory on the node \(IP: ([^,)]+).*? was (\S+) used / (\S+)", said)
    node = f"node {found[1]} ran out of memory ({found[2]} of {found[3]})" if found else "no memory"
    return f"{node}: Ray ended the attempt to free some"
