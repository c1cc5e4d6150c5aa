"""Supervises a run from its first attempt to its end: failures, resizes, stop requests.

A run is a sequence of attempts. Each is a group of workers of fixed size, started and watched
through a `TrainingCluster`. Progress is read from storage: the newest complete checkpoint counts,
not Ray's own state. So the run survives the loss of workers, nodes and Ray's controller, and a
second driver continues where a dead one stopped.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from trainrig import storage
from trainrig.errors import ClusterError, ClusterLost, FolderGone, Unfinished
from trainrig.processes.heartbeats import Heartbeat, compute_send_interval
from trainrig.processes.retry_policy import GiveUp
from trainrig.processes.stop_file import StopRequests
from trainrig.train.checkpoint import Checkpoint, find_newest_valid, read_verified_sums
from trainrig.train.elastic.failure_cause import find_absent_ranks, find_hang_cause, record_start
from trainrig.train.elastic.restart_policy import (
    Failure,
    HangDetector,
    Quarantine,
    RestartPolicy,
    WorkerNode,
    find_reason_to_leave,
)
from trainrig.train.run.checkpoint_scores import find_last_step
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run_file.worker_settings import WorkerBounds
from trainrig.train.training_job import TrainingJob

log = logging.getLogger(__name__)
POLL = 0.2  # s between two polls of a running attempt, at least
CHECK_NODES_EVERY = 1.0  # s between two checks of the cluster's nodes
CHECK_FOLDER_EVERY = 5.0  # s between two checks that the run folder still exists
FREED_WITHIN = 2.0  # s until Ray has noticed that the workers of an attempt are gone
# s after the kill until an attempt counts as over, even if Ray has not noticed
ABANDON_AFTER = 15.0


@dataclass(frozen=True)
class TrainingResult:
    """Result of a finished job."""

    checkpoint: Checkpoint  # checkpoint of the last step
    restarts: int  # over the whole life of the run folder


class AttemptHandle(Protocol):
    """Worker group of one attempt, as the supervisor uses it."""

    def poll_end(self, wait: float) -> bool:
        """Return whether the attempt has ended, or lost a rank it cannot continue without.

        Waits up to `wait` seconds for that.
        """

    def find_failure(self) -> Failure | None:
        """Return why the attempt failed, once it is over; None if it succeeded.

        Raises InputError for a problem that the user must fix.
        """

    def heartbeats(self) -> Mapping[int, Heartbeat]:
        """Return the newest heartbeat of each rank."""

    def ask_to_stop(self) -> None:
        """Ask the ranks to save and stop."""

    def kill(self) -> None:
        """Kill the process of every rank at once. May be called again."""

    def release(self) -> None:
        """End what is left of a failed attempt, and free what the next one does not reuse."""


class TrainingCluster(Protocol):
    """Machines of a run. Once they are gone, its methods and its groups raise ClusterLost."""

    def list_nodes(self) -> Sequence[WorkerNode]:
        """Return the nodes that respond now."""

    def replace(self, faulty: frozenset[str]) -> None:
        """Request other nodes in place of the `faulty` ones, if the cluster can grow."""

    def start(
        self,
        job: TrainingJob,
        attempt: TrainingAttempt,
        resume_from: str | None,
        workers: int,
        avoid: frozenset[str],
    ) -> AttemptHandle:
        """Start a worker group with no worker on the nodes `avoid`; return before it is up."""

    def abandon(self, lost: ClusterLost) -> None:
        """End whatever is left of a lost cluster, so that no rank trains on."""

    def restart_if_lost(self) -> None:
        """Start a new cluster after `abandon`; do nothing otherwise.

        Raises ClusterLost if the lost cluster was not started by this process.
        """


def supervise(
    job: TrainingJob, bounds: WorkerBounds, cluster: TrainingCluster, stop: StopRequests
) -> TrainingResult:
    """Train `job` to its last step.

    Raises InputError for a problem that the user must fix; ClusterError if attempts fail more often
    than the job allows or too few nodes are left; Unfinished if asked to stop.
    """
    folder = RunFolder(job.folder)
    quarantine = Quarantine(folder, job.training.faults.quarantine_after, bounds)
    return _Run(job, bounds, cluster, stop, folder, quarantine).train_to_end()


@dataclass(frozen=True)
class _Run:
    job: TrainingJob
    bounds: WorkerBounds
    cluster: TrainingCluster
    stop: StopRequests
    folder: RunFolder
    quarantine: Quarantine

    def train_to_end(self) -> TrainingResult:
        newest = self._find_newest()
        policy = RestartPolicy(self.job.training.faults, newest.step if newest else 0)
        why = "start"
        workers = 0
        while not newest or newest.step < self._find_last_step():
            step = newest.step if newest else 0
            before = workers
            workers = self._wait_for_size(step)
            if why == "fault" and workers < before:
                why = "shrink"
            attempt = self.folder.take_attempt(step)
            job = self.job.lay_out(workers)
            record_start(self.folder, attempt, job.training.parallel, workers, why)
            asked, failure = self._run_attempt(job, attempt, newest, workers)
            newest = self._find_newest()
            why = self._record_end(attempt, newest.step if newest else 0, asked, failure, policy)
        self._record_finished(newest.step)
        attempts = [attempt for attempt in self.folder.read_attempts() if not attempt.skip]
        return TrainingResult(newest, restarts=max(0, len(attempts) - 1))

    def _record_finished(self, step: int) -> None:
        """Record the `finished` event, unless it is recorded already.

        Another driver may have done so: one that took the run over, or one that died after the
        event.
        """
        events = self.folder.read_events()
        if not any(event["event"] == "finished" and event["step"] == step for event in events):
            self.folder.record("finished", step=step)

    def _run_attempt(
        self, job: TrainingJob, attempt: TrainingAttempt, newest: Checkpoint | None, workers: int
    ) -> tuple[str | None, Failure | None]:
        """Run one attempt; return why it was asked to stop, and how it failed.

        Either is None if it does not apply.
        """
        try:
            path = newest.path if newest else None
            avoid = self.quarantine.avoided
            group = self.cluster.start(job, attempt, path, workers, avoid)
            asked, failure = _AttemptWatcher(self, group, attempt, workers).watch_until_over()
            if failure:
                group.release()
        except ClusterLost as lost:
            self._abandon_cluster(lost)
            return None, Failure(str(lost), "Ray", newest.step if newest else 0)
        return asked, failure

    def _abandon_cluster(self, lost: ClusterLost) -> None:
        """Record that the cluster is lost, then end what is left of it, which takes seconds."""
        log.warning("%s; ending the rest of the attempt", lost)
        self.folder.record("cluster_lost", problem=str(lost)[:500])
        self.cluster.abandon(lost)

    def _find_newest(self) -> Checkpoint | None:
        settings = self.job.training.checkpoints
        newest, damages = find_newest_valid(self.folder, thorough=False, copy=settings.copy_to)
        # No rank will load the last checkpoint, so it is verified here, unless its ranks have
        # already read it back.
        last = newest is not None and newest.step >= self._find_last_step()
        if newest and last and read_verified_sums(newest.path) is None:
            newest, damages = find_newest_valid(self.folder, copy=settings.copy_to)
        if damages:
            self._report_damages(damages)
        return newest

    def _find_last_step(self) -> int:
        """Return the last step, by the run file, or earlier if scores ended the run."""
        training = self.job.training
        return find_last_step(self.folder, training.steps) if training.stop_if else training.steps

    def _report_damages(self, damages: Sequence[str]) -> None:
        """Record and log each damaged checkpoint once, although every search finds it again."""
        events = self.folder.read_events()
        known = {event["problem"] for event in events if event["event"] == "checkpoint_damaged"}
        for damage in damages:
            if damage[:500] not in known:
                self.folder.record("checkpoint_damaged", problem=damage[:500])
                log.warning("skipped a damaged checkpoint: %s", damage)

    def _wait_for_size(self, step: int) -> int:
        """Wait for enough space, and return the number of workers for the next attempt.

        As long as more would fit once everything on the nodes has ended, it waits up to
        FREED_WITHIN: the places of an ended group are not free at once. Raises ClusterError after
        `faults.wait_for_nodes` seconds without enough space.
        """
        faults = self.job.training.faults
        began = time.monotonic()
        waiting = False
        self._pause(0)
        self.quarantine.count()
        while True:
            nodes = self._wait_for_nodes()
            waited = time.monotonic() - began
            choice = self.quarantine.choose(nodes)
            self.cluster.replace(choice.faulty)
            settled = waited >= FREED_WITHIN or not choice.changes
            if choice.size is not None and settled:
                self.quarantine.take(choice, step)
                return choice.size
            if choice.size is None and waited > faults.wait_for_nodes:
                raise ClusterError(
                    f"{self.job.folder}: the run is at step {step}; for "
                    f"{faults.wait_for_nodes:g} s, "
                    f"the cluster had no space for workers = {self.bounds}; add nodes and run it "
                    "again, "
                    "or allow fewer"
                )
            if choice.size is None and settled and not waiting:
                waiting = True
                capacity = sum(node.capacity for node in nodes if not node.draining)
                self.folder.record("waiting_for_nodes", step=step, capacity=capacity)
                log.warning(
                    "space for only %d workers of %s: waiting for nodes", capacity, self.bounds
                )
            self._pause(CHECK_NODES_EVERY if waiting else POLL)

    def _wait_for_nodes(self) -> Sequence[WorkerNode]:
        """Return the nodes of the cluster, starting another cluster if it was lost."""
        while True:
            try:
                self.cluster.restart_if_lost()
            except ClusterLost as lost:
                self._end_unfinished(str(lost))
            try:
                return self.cluster.list_nodes()
            except ClusterLost as lost:
                self._abandon_cluster(lost)
                self._pause(CHECK_NODES_EVERY)

    def _pause(self, seconds: float) -> None:
        """Wait `seconds`. Raise Unfinished if a stop is requested meanwhile."""
        until = time.monotonic() + seconds
        while True:
            if self.stop.read_request():
                self._end_as_asked()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(POLL, left))

    def _record_end(
        self,
        attempt: TrainingAttempt,
        newest: int,
        asked: str | None,
        failure: Failure | None,
        policy: RestartPolicy,
    ) -> str:
        """Record how `attempt` ended, and return the reason for another one, "" at the end.

        Raises ClusterError if the restart policy gives up.
        """
        if failure is None and asked is None and self.folder.is_rolled_back(attempt):
            asked = "rollback"
        elif failure is None and asked is None and newest < self._find_last_step():
            failure = Failure("the attempt left no complete checkpoint", "storage", newest)
        if failure is None:
            self.folder.record("attempt_stopped", attempt=attempt.number, step=newest, why=asked)
            return asked or ""
        self.folder.record(
            "attempt_failed",
            attempt=attempt.number,
            problem=failure.problem[:500],
            seen_by=failure.seen_by,
            step=failure.step,
            **({"node": failure.node} if failure.node else {}),
        )
        log.warning("attempt %d failed (%s)", attempt.number, failure.problem)
        if not self.stop.read_request():
            verdict = policy.decide_after(failure, newest)
            if isinstance(verdict, GiveUp):
                raise ClusterError(f"{self.job.folder}: {verdict.reason}")
            if verdict:
                self.folder.record("back_off", seconds=verdict)
                self._pause(verdict)
        return "fault"

    def _end_as_asked(self) -> NoReturn:
        how = self.stop.read_request()
        self.stop.remove_request()
        self._end_unfinished(f"stopped by {how}", how)

    def _end_unfinished(self, why: str, how: str | None = None) -> NoReturn:
        newest = self._find_newest()  # a rank may have saved since its attempt was given up
        step = newest.step if newest else 0
        self.folder.record("run_stopped", step=step, how=how or why)
        raise Unfinished(
            f"{self.job.folder}: {why}; step {step} of {self.job.training.steps} is saved; run the "
            "same command to continue"
        )


class _AttemptWatcher:
    """Watches one attempt, and stops or kills it if necessary."""

    def __init__(
        self, run: _Run, group: AttemptHandle, attempt: TrainingAttempt, workers: int
    ) -> None:
        self._run = run
        self._group = group
        self._attempt = attempt
        self._workers = workers
        self._faults = run.job.training.faults
        self._hangs = HangDetector(self._faults, workers, time.monotonic())
        self._asked: str | None = None  # why the ranks were asked to stop
        self._grace_over = float("inf")  # when the grace period of a stop request ends
        self._killed: Failure | None = None
        self._give_up = float("inf")  # when to stop waiting for Ray to notice the kill
        self._larger_since: float | None = None  # since when more workers would fit
        self._looked = float("-inf")
        self._looked_at_folder = time.monotonic()
        self._wait = POLL

    def watch_until_over(self) -> tuple[str | None, Failure | None]:
        """Watch until the end; return why it was asked to stop, and how it failed."""
        try:
            while not self._group.poll_end(self._wait):
                now = time.monotonic()
                if now > self._give_up:
                    return self._asked, self._killed
                self._check_attempt(now)
            failure = self._group.find_failure()
        except BaseException:
            # a second Ctrl-C, or an error for the user to fix: leave no rank running
            self._group.kill()
            raise
        return self._asked, failure and (self._killed or failure)

    def _check_folder(self, now: float) -> None:
        """Raise FolderGone if the run folder was removed: going on would be useless."""
        if now - self._looked_at_folder < CHECK_FOLDER_EVERY:
            return
        self._looked_at_folder = now
        folder = self._run.folder
        storage.check_held(folder.path)
        if folder.is_gone(self._attempt):
            raise FolderGone(
                f"{folder.path}: the folder was removed during the run (the record of attempt "
                f"{self._attempt.number} is missing), so the run ended; delete what is left "
                "there, and run the same command to start again"
            )

    def _check_attempt(self, now: float) -> None:
        self._check_folder(now)
        heartbeats = self._group.heartbeats()
        pauses = (
            compute_send_interval(POLL, heartbeat, self._faults.hang_seconds)
            for heartbeat in heartbeats.values()
        )
        self._wait = min(pauses, default=POLL)
        if hang := self._hangs.update(heartbeats, now):
            events = self._run.folder.read_events()
            step = self._find_step(heartbeats)
            absent = find_absent_ranks(events, self._attempt.number, self._workers)
            self._kill(find_hang_cause(hang, absent, heartbeats, step), "hang_seen", now)
        elif now > self._grace_over:
            problem = f"it did not stop within the {self._faults.grace:g} s of grace"
            self._kill(Failure(problem, "grace", self._find_step(heartbeats)), "grace_over", now)
        if self._asked != "stop" and (how := self._run.stop.read_request()):
            self._ask("stop", heartbeats, "stop_requested", how=how)
            self._grace_over = now + self._faults.grace
        elif self._asked is None and now - self._looked >= CHECK_NODES_EVERY:
            self._looked = now
            self._check_nodes(heartbeats, now)

    def _check_nodes(self, heartbeats: Mapping[int, Heartbeat], now: float) -> None:
        used = frozenset(heartbeat.node for heartbeat in heartbeats.values())
        stepped = self._find_step(heartbeats) > self._attempt.resumed_step
        nodes = self._run.quarantine.drop_avoided(self._run.cluster.list_nodes())
        why = find_reason_to_leave(self._workers, used, stepped, nodes, self._run.bounds)
        if why != "grow":
            self._larger_since = None
        if why == "drain":
            draining = [node.id for node in nodes if node.draining and node.id in used]
            self._ask("drain", heartbeats, "node_draining", nodes=draining[:8])
        elif why == "grow":
            self._larger_since = self._larger_since or now
            if now - self._larger_since >= self._faults.settle:
                self._ask("grow", heartbeats, "nodes_added", nodes=len(nodes))

    def _ask(
        self, why: str, heartbeats: Mapping[int, Heartbeat], event: str, **details: object
    ) -> None:
        self._asked = why
        step = self._find_step(heartbeats)
        self._run.folder.record(event, attempt=self._attempt.number, step=step, **details)
        self._group.ask_to_stop()

    def _kill(self, failure: Failure, event: str, now: float) -> None:
        if self._killed is None:
            self._killed = failure
            self._give_up = now + ABANDON_AFTER
            self._run.folder.record(
                event, attempt=self._attempt.number, problem=failure.problem, step=failure.step
            )
        self._group.kill()

    def _find_step(self, heartbeats: Mapping[int, Heartbeat]) -> int:
        steps = (heartbeat.step for heartbeat in heartbeats.values())
        return max(self._attempt.resumed_step, max(steps, default=0))
