"""Supervises a run from its first attempt to its end, through failures, resizes and stop
requests.

Attempts follow each other, each a group of workers of fixed size, started and watched through a
`TrainingCluster`. What they achieved is read from storage: the newest whole checkpoint is the
truth, and nothing that Ray remembers counts. So the run outlives its workers, their nodes and Ray's
own controller, and a second driver goes on where a dead one left it.
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
from trainrig.train.elastic.failure_cause import find_absent_ranks, find_hang_cause
from trainrig.train.elastic.quarantine import Quarantine
from trainrig.train.elastic.restart_policy import (
    Failure,
    HangDetector,
    RestartPolicy,
    WorkerNode,
    find_reason_to_leave,
)
from trainrig.train.job import TrainingJob
from trainrig.train.run.attempt_start import record_start
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run.scores.records import find_last_step
from trainrig.train.worker_bounds import WorkerBounds

log = logging.getLogger(__name__)
POLL = 0.2  # s between two looks at a running attempt, at least
LOOK_AT_NODES = 1.0  # s between two looks at the cluster
LOOK_AT_FOLDER = 5.0  # s between two looks whether the run folder is still there
FREED_WITHIN = 2.0  # s in which Ray has seen that the workers of an attempt are gone
ABANDON_AFTER = 15.0  # s after the kill: then an attempt is over even if Ray has not noticed


@dataclass(frozen=True)
class TrainingResult:
    """How a job ended."""

    checkpoint: Checkpoint  # of the last step
    restarts: int  # over the whole life of the run folder


class AttemptHandle(Protocol):
    """The workers of one attempt."""

    def poll_end(self, wait: float) -> bool:
        """Whether it is over, or part of it is that the rest cannot go on without; waits for that,
        up to `wait` seconds."""

    def find_failure(self) -> Failure | None:
        """Why it failed, once it is over. Raises InputError for what the user must mend."""

    def heartbeats(self) -> Mapping[int, Heartbeat]:
        """The newest heartbeat of each rank."""

    def ask_to_stop(self) -> None:
        """Tell the ranks that a stop is wanted."""

    def kill(self) -> None:
        """End the process of every rank at once. May be called again."""

    def release(self) -> None:
        """End what is left of a failed attempt, and free what the next one has no use for."""


class TrainingCluster(Protocol):
    """The machines of a run. It and its groups raise ClusterLost once it is gone."""

    def list_nodes(self) -> Sequence[WorkerNode]:
        """Those that answer now."""

    def replace(self, faulty: frozenset[str]) -> None:
        """Have others in the place of these nodes, where more can be asked for."""

    def start(
        self,
        job: TrainingJob,
        attempt: TrainingAttempt,
        resume_from: str | None,
        workers: int,
        avoid: frozenset[str],
    ) -> AttemptHandle:
        """Start a group, none of it on the nodes `avoid`; returns before it is up."""

    def abandon(self, lost: ClusterLost) -> None:
        """End whatever is left of one that is gone, so that no rank trains on."""

    def begin_again(self) -> None:
        """After `abandon`: have one anew; else nothing. Raises ClusterLost if it is another's."""


def supervise(
    job: TrainingJob, bounds: WorkerBounds, cluster: TrainingCluster, stop: StopRequests
) -> TrainingResult:
    """Train `job` to its last step.

    Raises InputError for what the user must fix, ClusterError when attempts fail more often than
    the job allows or too few nodes are left, Unfinished when asked to stop.
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
        why, workers = "start", 0
        while not newest or newest.step < self._find_last_step():
            step = newest.step if newest else 0
            before, workers = workers, self._wait_for_size(step)
            if why == "fault" and workers < before:
                why = "shrink"
            attempt, job = self.folder.take_attempt(step), self.job.lay_out(workers)
            record_start(self.folder, attempt, job.training.parallel, workers, why)
            asked, failure = self._run_attempt(job, attempt, newest, workers)
            newest = self._find_newest()
            why = self._record_end(attempt, newest.step if newest else 0, asked, failure, policy)
        self._record_finished(newest.step)
        attempts = [each for each in self.folder.read_attempts() if not each.skip]
        return TrainingResult(newest, restarts=max(0, len(attempts) - 1))

    def _record_finished(self, step: int) -> None:
        """Put on record that the run is at its end, unless another driver has: one that took it
        over, or one that died after it had said so."""
        events = self.folder.read_events()
        if not any(each["event"] == "finished" and each["step"] == step for each in events):
            self.folder.record("finished", step=step)

    def _run_attempt(
        self, job: TrainingJob, attempt: TrainingAttempt, newest: Checkpoint | None, workers: int
    ) -> tuple[str | None, Failure | None]:
        """Why the attempt was asked to stop, if it was, and how it failed, if it did."""
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
        """Told first: to end what is left takes seconds."""
        log.warning("%s; ending what is left of it", lost)
        self.folder.record("cluster_lost", problem=str(lost)[:500])
        self.cluster.abandon(lost)

    def _find_newest(self) -> Checkpoint | None:
        settings = self.job.training.checkpoints
        newest, damages = find_newest_valid(self.folder, thorough=False, copy=settings.copy_to)
        # No rank is going to load the last one; those that wrote it have read it back, if they
        # lived to do so.
        last = newest is not None and newest.step >= self._find_last_step()
        if newest and last and read_verified_sums(newest.path) is None:
            newest, damages = find_newest_valid(self.folder, copy=settings.copy_to)
        if damages:
            self._tell_of(damages)
        return newest

    def _find_last_step(self) -> int:
        """Of the run file, or earlier where scores have ended the run."""
        training = self.job.training
        return find_last_step(self.folder, training.steps) if training.stop_if else training.steps

    def _tell_of(self, damages: Sequence[str]) -> None:
        """Each once: every look meets them again."""
        events = self.folder.read_events()
        known = {event["problem"] for event in events if event["event"] == "checkpoint_damaged"}
        for damage in damages:
            if damage[:500] not in known:
                self.folder.record("checkpoint_damaged", problem=damage[:500])
                log.warning("passed over a damaged checkpoint: %s", damage)

    def _wait_for_size(self, step: int) -> int:
        """Workers for the next attempt, once there is room for enough of them.

        While something runs on the nodes it waits a moment: the room of a group that has just
        ended is not seen as free at once.
        """
        faults, began, waiting = self.job.training.faults, time.monotonic(), False
        self._pause(0)
        self.quarantine.count()
        while True:
            nodes, waited = self._wait_for_nodes(), time.monotonic() - began
            choice = self.quarantine.choose(nodes)
            self.cluster.replace(choice.faulty)
            settled = waited >= FREED_WITHIN or not choice.changes
            if choice.size is not None and settled:
                self.quarantine.take(choice, step)
                return choice.size
            if choice.size is None and waited > faults.wait_for_nodes:
                raise ClusterError(
                    f"{self.job.folder}: stands at step {step}; for {faults.wait_for_nodes:g} s "
                    f"there was no room for workers = {self.bounds}; add nodes and run it again, "
                    "or allow fewer"
                )
            if choice.size is None and settled and not waiting:
                waiting = True
                capacity = sum(node.capacity for node in nodes if not node.draining)
                self.folder.record("waiting_for_nodes", step=step, capacity=capacity)
                log.warning("room for %d workers of %s: waiting for nodes", capacity, self.bounds)
            self._pause(LOOK_AT_NODES if waiting else POLL)

    def _wait_for_nodes(self) -> Sequence[WorkerNode]:
        """Of the cluster, or of the one that follows it."""
        while True:
            try:
                self.cluster.begin_again()
            except ClusterLost as lost:
                self._end_unfinished(str(lost))
            try:
                return self.cluster.list_nodes()
            except ClusterLost as lost:
                self._abandon_cluster(lost)
                self._pause(LOOK_AT_NODES)

    def _pause(self, seconds: float) -> None:
        """Do nothing for so long, but for ending the run when asked to."""
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
        """Put the end of `attempt` on record; why there is another one. Raises if there is none."""
        if failure is None and asked is None and self.folder.has_rolled_back(attempt):
            asked = "rollback"
        elif failure is None and asked is None and newest < self._find_last_step():
            failure = Failure("it left no whole checkpoint behind", "storage", newest)
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
        newest = self._find_newest()  # which a rank may have saved since its attempt was given up
        step = newest.step if newest else 0
        self.folder.record("run_stopped", step=step, how=how or why)
        raise Unfinished(
            f"{self.job.folder}: {why}; step {step} of {self.job.training.steps} is saved, and the "
            "same command goes on from there"
        )


class _AttemptWatcher:
    """Watches one attempt, and moves or ends it when there is reason to."""

    def __init__(
        self, run: _Run, group: AttemptHandle, attempt: TrainingAttempt, workers: int
    ) -> None:
        self._run, self._group, self._attempt, self._workers = run, group, attempt, workers
        self._faults = run.job.training.faults
        self._hangs = HangDetector(self._faults, workers, time.monotonic())
        self._asked: str | None = None  # why the ranks were asked to stop
        self._grace_over = float("inf")
        self._killed: Failure | None = None
        self._give_up = float("inf")  # waiting for Ray to notice
        self._larger_since: float | None = None
        self._looked = float("-inf")
        self._looked_at_folder = time.monotonic()
        self._wait = POLL

    def watch_until_over(self) -> tuple[str | None, Failure | None]:
        """Why it was asked to stop, if it was, and how it failed, if it did."""
        try:
            while not self._group.poll_end(self._wait):
                now = time.monotonic()
                if now > self._give_up:
                    return self._asked, self._killed
                self._look(now)
            failure = self._group.find_failure()
        except BaseException:
            self._group.kill()  # a second Ctrl-C, and what the user must mend: leave nobody behind
            raise
        return self._asked, failure and (self._killed or failure)

    def _look_at_folder(self, now: float) -> None:
        """Raise FolderGone if somebody removed the run folder: nothing would come of going on."""
        if now - self._looked_at_folder < LOOK_AT_FOLDER:
            return
        self._looked_at_folder = now
        folder = self._run.folder
        storage.check_held(folder.path)
        if folder.is_gone(self._attempt):
            raise FolderGone(
                f"{folder.path}: removed while the run was going on (the record of its attempt "
                f"{self._attempt.number} is gone), so the run was ended; delete what is left "
                "there, and the same command begins anew"
            )

    def _look(self, now: float) -> None:
        self._look_at_folder(now)
        heartbeats = self._group.heartbeats()
        pauses = (
            compute_send_interval(POLL, heartbeat, self._faults.hang_seconds)
            for heartbeat in heartbeats.values()
        )
        self._wait = min(pauses, default=POLL)
        if hang := self._hangs.update(heartbeats, now):
            events, step = self._run.folder.read_events(), self._find_step(heartbeats)
            absent = find_absent_ranks(events, self._attempt.number, self._workers)
            self._kill(find_hang_cause(hang, absent, heartbeats, step), "hang_seen", now)
        elif now > self._grace_over:
            problem = f"it did not stop within the {self._faults.grace:g} s of grace"
            self._kill(Failure(problem, "grace", self._find_step(heartbeats)), "grace_over", now)
        if self._asked != "stop" and (how := self._run.stop.read_request()):
            self._ask("stop", heartbeats, "stop_requested", how=how)
            self._grace_over = now + self._faults.grace
        elif self._asked is None and now - self._looked >= LOOK_AT_NODES:
            self._looked = now
            self._look_at_nodes(heartbeats, now)

    def _look_at_nodes(self, heartbeats: Mapping[int, Heartbeat], now: float) -> None:
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
            self._killed, self._give_up = failure, now + ABANDON_AFTER
            self._run.folder.record(
                event, attempt=self._attempt.number, problem=failure.problem, step=failure.step
            )
        self._group.kill()

    def _find_step(self, heartbeats: Mapping[int, Heartbeat]) -> int:
        steps = (heartbeat.step for heartbeat in heartbeats.values())
        return max(self._attempt.resumed_step, max(steps, default=0))
