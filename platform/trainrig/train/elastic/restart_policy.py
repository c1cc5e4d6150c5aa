"""The restart policy: pure functions of the run's state, and the nodes that a run avoids.

It decides how many workers the next attempt has, whether to leave a running attempt, whether a
rank hangs, whether another attempt is worthwhile, and which nodes caused too many failures. It
uses no Ray and no clock. Nodes are known by their ids, and their failures are read from the
run's events, so a second driver avoids the same nodes, as long as the cluster exists.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.processes.heartbeats import Heartbeat
from trainrig.processes.retry_policy import FailureHistory, GiveUp, compute_back_off, normalise
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.worker_settings import Faults, WorkerBounds


@dataclass(frozen=True)
class WorkerNode:
    """Reachable machine of the cluster."""

    id: str
    capacity: int  # workers of this run that fit now, including those already there
    draining: bool = False  # True if it will be taken away soon
    slots: int = 0  # workers that would fit if nothing else ran there


def find_best_size(nodes: Iterable[WorkerNode], bounds: WorkerBounds) -> int | None:
    """Return the number of workers for the next attempt; None while too few fit."""
    return bounds.fit_within(sum(node.capacity for node in nodes if not node.draining))


def may_be_freed(nodes: Iterable[WorkerNode], bounds: WorkerBounds) -> bool:
    """Return whether the best size would change if everything running on `nodes` ended."""
    nodes = list(nodes)
    slots = sum(max(node.capacity, node.slots) for node in nodes if not node.draining)
    return bounds.fit_within(slots) != find_best_size(nodes, bounds)


def find_reason_to_leave(
    workers: int,
    used: frozenset[str],
    stepped: bool,
    nodes: Iterable[WorkerNode],
    bounds: WorkerBounds,
) -> str | None:
    """Return why a running attempt should stop: "drain", "grow", or None.

    Args:
        workers: Number of workers of the attempt.
        used: Ids of the nodes that they run on.
        stepped: Whether the attempt has made a step. Before that, it is left alone, so that a run
        on unstable nodes makes progress nevertheless.
        nodes: The nodes now. A lost node is not handled here: the attempt fails by itself.
        bounds: Allowed numbers of workers.
    """
    nodes = list(nodes)
    if not stepped:
        return None
    if any(node.draining and node.id in used for node in nodes):
        return "drain"
    size = find_best_size(nodes, bounds)
    return "grow" if size is not None and size > workers else None


@dataclass(frozen=True)
class Hang:
    """Rank without progress for longer than allowed."""

    rank: int
    silent: float  # seconds
    allowed: float  # seconds
    doing: str

    def __str__(self) -> str:
        """Return the hang as a sentence."""
        return (
            f"rank {self.rank} hangs: no progress for {self.silent:.1f} s "
            f"(allowed: {self.allowed:.1f} s) while it was to {self.doing}"
        )


class HangDetector:
    """Detector of ranks without progress, from the heartbeats of one attempt."""

    def __init__(self, faults: Faults, workers: int, now: float) -> None:
        """Start the detector; `now` is in seconds, on the same clock as in `update`."""
        self._faults = faults
        self._workers = workers
        self._began = now
        # newest heartbeat of each rank, and when it was first seen
        self._newest_heartbeats: dict[int, tuple[Heartbeat, float]] = {}

    def update(self, heartbeats: Mapping[int, Heartbeat], now: float) -> Hang | None:
        """Record `heartbeats`, and return the first rank without progress for too long, if any."""
        for rank, heartbeat in heartbeats.items():
            if (
                rank not in self._newest_heartbeats
                or heartbeat.count != self._newest_heartbeats[rank][0].count
            ):
                self._newest_heartbeats[rank] = heartbeat, now
        if (
            len(self._newest_heartbeats) < self._workers
            and now - self._began > self._faults.start_limit
        ):
            missing = next(
                rank for rank in range(self._workers) if rank not in self._newest_heartbeats
            )
            return Hang(missing, now - self._began, self._faults.start_limit, "start")
        for rank, (heartbeat, since) in sorted(self._newest_heartbeats.items()):
            allowed = self.compute_allowed(heartbeat)
            if now - since > allowed:
                return Hang(rank, now - since, allowed, heartbeat.doing)
        return None

    def compute_allowed(self, heartbeat: Heartbeat) -> float:
        """Return the seconds allowed between `heartbeat` and the next one."""
        if not heartbeat.usual or heartbeat.step_seconds is None:
            return max(self._faults.start_limit, self._faults.hang_seconds)
        return max(self._faults.hang_seconds, self._faults.hang_steps * heartbeat.step_seconds)


@dataclass(frozen=True)
class Failure:
    """Failure of an attempt, with its cause as far as is known."""

    problem: str  # description in one line
    seen_by: str  # observer: "agents", "Ray", "heartbeats", "grace", "storage"
    step: int  # updates done when it failed, as far as is known
    # Type and message of an exception that a worker raised, not because of a lost peer.
    exception: str | None = None
    # The checkpoint to resume from was unreadable; the next attempt uses the one before it.
    damaged: bool = False
    memory: bool = False  # True if a device or a node ran out of memory
    # The rank that died or whose device broke, and its node; None if it was not exactly one.
    rank: int | None = None
    node: str | None = None


class RestartPolicy:
    """Decides after each failure whether to restart, and after what delay."""

    def __init__(self, faults: Faults, step: int) -> None:
        """Start the policy; `step`: step of the newest checkpoint."""
        self._faults = faults
        self._newest = step
        self._without_progress = 0
        self._history = FailureHistory(last_only=True)

    def decide_after(self, failure: Failure, newest: int) -> float | GiveUp:
        """Return the seconds to wait before the next attempt, or GiveUp.

        `newest`: the step that the next attempt resumes from.
        """
        repeated = self._history.repeats(_compute_signature(failure), failure.step)
        if failure.damaged:
            return 0.0  # every damaged checkpoint is tried only once, so this ends
        if repeated and failure.memory:
            return GiveUp(
                f"out of memory at step {failure.step} twice in a row, so a third attempt would be "
                f"too ({failure.problem}); lower batches.micro_batch, set [training.recompute] to "
                "keep fewer activations, or use larger machines: `trainrig check` estimates what a "
                "worker needs"
            )
        if repeated:
            return GiveUp(
                f"the same failure at step {failure.step} twice in a row, so a third attempt would "
                f"meet it too: {failure.problem}"
            )
        self._without_progress = 0 if newest > self._newest else self._without_progress + 1
        self._newest = max(newest, self._newest)
        if self._without_progress > self._faults.max_restarts:
            return GiveUp(
                f"no progress beyond step {newest}, attempts: {self._without_progress}; the last: "
                f"{failure.problem}"
            )
        if self._without_progress < 2:
            return 0.0
        return compute_back_off(
            self._faults.back_off, self._faults.longest_back_off, self._without_progress - 2
        )


def _compute_signature(failure: Failure) -> tuple[int, bool, str] | None:
    """Return a key that is equal for repeated failures of the run itself.

    Returns None if a process died for another reason, such as a signal or a lost node.
    """
    if failure.memory:
        return failure.step, True, ""
    if failure.exception is None:
        return None
    return failure.step, False, normalise(failure.exception)


log = logging.getLogger(__name__)


def count_faults(events: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return the number of attempts that each node made fail; nodes without failures are absent."""
    failed = (event for event in events if event["event"] == "attempt_failed")
    return Counter(event["node"] for event in failed if event.get("node"))


@dataclass(frozen=True)
class Choice:
    """Placement that is possible for the next attempt."""

    size: int | None  # number of workers; None: too few fit
    faulty: frozenset[str]  # nodes that made too many attempts fail
    avoided: frozenset[str]  # faulty nodes that the attempt would not use
    changes: bool  # True if more workers would fit once everything on the nodes has ended


class Quarantine:
    """Nodes that a run avoids.

    If enough workers do not fit without the faulty nodes, none is avoided: a run that fails now and
    then is better than one that waits.
    """

    def __init__(self, folder: RunFolder, most: int, bounds: WorkerBounds) -> None:
        """Set up the quarantine; `most` is the number of failures from which a node is avoided."""
        self._folder = folder
        self._most = most
        self._bounds = bounds
        self._faults = Counter[str]()
        self.avoided = frozenset[str]()  # node ids avoided by the newest attempt

    def count(self) -> None:
        """Read the failures so far from the run's events; call this before placing an attempt."""
        self._faults = count_faults(self._folder.read_events())

    def choose(self, nodes: Sequence[WorkerNode]) -> Choice:
        """Return where on `nodes` an attempt could run now."""
        faulty = frozenset(node.id for node in nodes if self._faults[node.id] >= self._most)
        sound = [node for node in nodes if node.id not in faulty]
        changes = may_be_freed(sound, self._bounds) or may_be_freed(nodes, self._bounds)
        size = find_best_size(sound, self._bounds)
        if size is None and faulty:
            size = find_best_size(nodes, self._bounds)
            return Choice(size, faulty, frozenset() if size else faulty, changes)
        return Choice(size, faulty, faulty, changes)

    def take(self, choice: Choice, step: int) -> None:
        """Apply `choice` to the next attempt, and record and log what it changes."""
        for node in sorted(choice.avoided - self.avoided):
            faults = self._faults[node]
            self._folder.record("node_quarantined", node=node, faults=faults, step=step)
            log.warning("node %s is no longer used: it made %d attempts fail", node[:8], faults)
        for node in sorted(choice.faulty - choice.avoided):
            faults = self._faults[node]
            self._folder.record("node_needed", node=node, faults=faults, step=step)
            log.warning(
                "node %s is still used although it made %d attempts fail: without it, the nodes "
                "cannot run "
                "workers = %s; add a node",
                *(node[:8], faults, self._bounds),
            )
        self.avoided = choice.avoided

    def drop_avoided(self, nodes: Iterable[WorkerNode]) -> list[WorkerNode]:
        """Return `nodes` without the nodes that the newest attempt avoids."""
        return [node for node in nodes if node.id not in self.avoided]
