"""Following of a submitted run, with a new submission when its cluster drops it.

The run's supervisor retries failures of the run. Failures of the supervisor itself (a replaced
head, a job that never starts) can only be seen by the process that follows it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainrig.errors import ClusterError
from trainrig.launch.ray_jobs import PENDING, SILENT_SECONDS, RayJob, RayJobs
from trainrig.launch.submit.follow import Following, end_as_stopped
from trainrig.launch.submit.submission import give_up
from trainrig.launch.supervise.attempt_ends import Limits
from trainrig.launch.supervise.run_record import LOST, LOST_SECONDS, QUEUED, JobAttempt, RunStatus

ASK_SECONDS = 1.0  # between questions to the cluster
END_SECONDS = 2.0  # seconds for an end to appear in storage after its job has ended
HUNG_SECONDS = 120.0  # seconds without a heartbeat while Ray reports the job as running
GONE_SECONDS = 60.0  # seconds in which neither the run nor its cluster answers
STARTS_AGAIN = 1  # retries of a job that stays pending


@dataclass
class Resubmitter:
    """Waits for the end of the run that `following` follows, and resubmits it if needed.

    `again` submits the run once more; None: this process found problems and may not.
    """

    following: Following
    limits: Limits
    again: Callable[[], JobAttempt] | None
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _dropped: dict[str, int] = field(default_factory=dict)  # number of lost attempts by cause
    _next: float = 0.0
    _trouble: tuple[str, float] = ("", 0.0)  # the current trouble, and since when
    # the newest sign of life, and when it was first seen
    _heard: tuple[object, float] = (None, 0.0)

    def wait_for_end(self) -> Mapping[str, Any]:
        """Return the run's end. Raises ClusterError if it is lost and cannot be submitted again."""
        for status in self.following.watch():
            if status.ended:
                return status.ended
            self._hear(status)
            if status.attempt and self.clock() >= self._next:
                self._next = self.clock() + ASK_SECONDS
                self._ask(status, status.attempt)
        raise AssertionError("the status is followed until the run ends")

    def _hear(self, status: RunStatus) -> None:
        sign = (status.attempt, status.heartbeat)
        if sign != self._heard[0]:
            self._heard = (sign, self.clock())

    def _is_lost(self, status: RunStatus) -> bool:
        """Return whether the run is lost, also by this process's clock, which may differ."""
        return status.state == LOST and self.clock() - self._heard[1] >= LOST_SECONDS

    def _ask(self, status: RunStatus, attempt: JobAttempt) -> None:
        """Ask the cluster about the attempt's job, and act on the answer."""
        # the log is not followed during this call, so the time limit is short
        jobs = RayJobs(attempt.address, SILENT_SECONDS)
        try:
            job = jobs.fetch_job(attempt.submission_id)
            trouble, seconds = self._find_trouble(status, job)
            if not trouble:
                self._trouble = ("", 0.0)
            elif self._lasts(trouble, seconds):
                if job and not job.over:
                    jobs.stop(attempt.submission_id)
                self._submit_again(attempt, trouble, _explain_trouble(trouble, job, attempt))
        except (ClusterError, OSError) as error:  # errors of the cluster, or of storage
            self._report_unreachable(status, error)

    def _find_trouble(self, status: RunStatus, job: RayJob | None) -> tuple[str, float]:
        """Return the trouble of an attempt without an end, and the seconds to tolerate it."""
        if job is not None and job.over:
            return "over", END_SECONDS
        if job is not None and job.status == PENDING:
            return "pending", self.limits.pending
        if status.state == QUEUED:
            return ("unknown", END_SECONDS) if job is None else ("silent", self.limits.pending)
        # While a driver or rank still sends heartbeats, a head that does not know the job is wrong.
        if self._is_lost(status):
            return ("unknown", END_SECONDS) if job is None else ("silent", HUNG_SECONDS)
        return "", 0.0

    def _lasts(self, trouble: str, seconds: float) -> bool:
        """Return whether this trouble has lasted for `seconds`."""
        if self._trouble[0] != trouble:
            self._trouble = (trouble, self.clock())
        return self.clock() - self._trouble[1] >= seconds

    def _report_unreachable(self, status: RunStatus, error: Exception) -> None:
        if self._trouble[0] != "unreachable":
            self.say(f"{error}; following the run from storage meanwhile")
        if self._lasts("unreachable", GONE_SECONDS) and self._is_lost(status):
            raise ClusterError(
                f"{self.following.record.id}: the run was lost with its cluster; submit "
                "it again to continue on another cluster"
            ) from error

    def _submit_again(self, attempt: JobAttempt, trouble: str, why: str) -> None:
        """Submit the run again if retries are left and no stop is requested, or record its end."""
        record = self.following.record
        if record.read_status().ended:  # the end was recorded in the meantime
            return
        if record.find_newest_attempt() != attempt.number:  # another process submitted it again
            return
        self._trouble = ("", 0.0)
        if record.stop_requested(attempt.number):
            end_as_stopped(record, attempt)
            return
        cause = "cluster" if trouble == "pending" else "lost node"
        self._dropped[cause] = self._dropped.get(cause, 0) + 1
        budget = STARTS_AGAIN if trouble == "pending" else self.limits.get_budget("lost node")
        if self.again is None or self._dropped[cause] > budget:
            give_up(record, attempt, why, cause)
            return
        self.say(f"{record.id}: {why}; submitted again")
        record.record("resubmitted", attempt.number, cause=cause, message=why)
        self.again()


def _explain_trouble(trouble: str, job: RayJob | None, attempt: JobAttempt) -> str:
    lines = job.message.strip().splitlines() if job else []
    said = lines[-1] if lines else ""
    waited = time.time() - attempt.submitted_at
    if trouble == "pending":
        for_what = said or "a place on the head"
        return f"its job did not start within {waited:.0f} s; it waited for: {for_what}"
    if trouble == "unknown":
        return "its cluster does not know its job; another head may have taken the address"
    if trouble == "silent":
        return "Ray reports its job as running, but it sends no heartbeats"
    status = job.status if job else ""
    why = said or "no reason given"
    return f"its job ended ({status}) without recording an end: {why}"
