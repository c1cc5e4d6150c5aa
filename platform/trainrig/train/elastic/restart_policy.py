"""The restart policy: decides what to do next from the state of a run, without Ray, clock or
storage.

How many workers to go on with, whether to leave a running attempt, whether it hangs, and whether
another attempt is worth making.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainrig.processes.heartbeats import Heartbeat
from trainrig.processes.retry_policy import FailureHistory, GiveUp, compute_back_off, normalise
from trainrig.train.fault_settings import Faults
from trainrig.train.worker_bounds import WorkerBounds


@dataclass(frozen=True)
class WorkerNode:
    """A machine of the cluster that answers."""

    id: str
    capacity: int  # workers of this run that it can hold, those that it holds included
    draining: bool = False  # about to be taken away
    slots: int = 0  # workers that it could hold if nothing else ran there


def find_best_size(nodes: Iterable[WorkerNode], bounds: WorkerBounds) -> int | None:
    """The number of workers for the next attempt; None while there are too few nodes."""
    return bounds.fit_within(sum(node.capacity for node in nodes if not node.draining))


def may_be_freed(nodes: Iterable[WorkerNode], bounds: WorkerBounds) -> bool:
    """Whether there would be more workers if all that runs on `nodes` ended."""
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
    """Why an attempt of `workers` on the nodes `used` should stop: "drain", "grow", or not at all.

    Only once it has `stepped`: a run on nodes that come and go gets on nevertheless. That a node is
    lost need not be seen here: the attempt fails.
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
    """A rank that shows no progress."""

    rank: int
    silent: float  # seconds
    allowed: float  # seconds
    doing: str

    def __str__(self) -> str:
        """In words."""
        return (
            f"rank {self.rank} hangs: no progress for {self.silent:.1f} s "
            f"(allowed: {self.allowed:.1f} s) while it was to {self.doing}"
        )


class HangDetector:
    """Follows the heartbeats of one attempt's ranks."""

    def __init__(self, faults: Faults, workers: int, now: float) -> None:
        """`now`: in seconds, on the same clock as in `update`."""
        self._faults, self._workers, self._began = faults, workers, now
        # the newest of each rank, and since when
        self._newest_heartbeats: dict[int, tuple[Heartbeat, float]] = {}

    def update(self, heartbeats: Mapping[int, Heartbeat], now: float) -> Hang | None:
        """The first rank that has shown no progress for longer than it may."""
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
        """Seconds that may pass after `heartbeat` before the next."""
        if not heartbeat.usual or heartbeat.step_seconds is None:
            return max(self._faults.start_limit, self._faults.hang_seconds)
        return max(self._faults.hang_seconds, self._faults.hang_steps * heartbeat.step_seconds)


@dataclass(frozen=True)
class Failure:
    """How an attempt failed."""

    problem: str  # in one line
    seen_by: str  # "worker agents", "Ray", "heartbeats", "grace"
    step: int  # updates done when it failed, as far as is known
    # Type and message of an exception that a worker raised of its own, not since another died.
    exception: str | None = None
    # It could not read the checkpoint it was to resume from; the next one takes the one before.
    damaged: bool = False
    memory: bool = False  # a device or a node had too little
    # The rank whose process died or whose device broke, of itself, and the node it was on.
    rank: int | None = None
    node: str | None = None


class RestartPolicy:
    """Decides after each failure whether to go on, and how long to wait before."""

    def __init__(self, faults: Faults, step: int) -> None:
        """`step`: of the newest checkpoint."""
        self._faults = faults
        self._newest = step
        self._without_progress = 0
        self._history = FailureHistory(last_only=True)

    def decide_after(self, failure: Failure, newest: int) -> float | GiveUp:
        """Seconds to wait before the next attempt, which resumes from step `newest`."""
        repeated = self._history.repeats(_compute_signature(failure), failure.step)
        if failure.damaged:
            return 0.0  # there are only so many checkpoints, and each is tried once
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
    """Equal for two that come from the run itself; None where processes died of something else."""
    if failure.memory:
        return failure.step, True, ""
    if failure.exception is None:
        return None
    return failure.step, False, normalise(failure.exception)
