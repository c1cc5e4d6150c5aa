"""Following of a run's log and events, and stopping of a run.

A run is followed from storage alone, so from any machine that reads its record, even when its
cluster is gone.

A run that is stopped is asked to save and end, and only later is its job ended: Ray alone would
kill the job 3 s after SIGTERM.
"""

import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainrig import storage
from trainrig.errors import ClusterError, Unfinished
from trainrig.launch.ray_jobs import RayJobs
from trainrig.launch.supervise import run_record
from trainrig.launch.supervise.attempt_ends import Limits

LOOK_SECONDS = 0.2  # between reads of a disk
LOOK_SECONDS_S3 = 2.0  # between reads of a bucket; each read is a few requests
SILENT_SECONDS = 600.0  # seconds without an answer of storage: a laptop is often offline

Hear = Callable[[bytes], None]
"""Receives one line of the log, without its line break."""
Say = Callable[[str], None]
"""Prints one line about the run for the user."""


@dataclass
class Following:
    """Reader of the record of a run that passes each line and event on once."""

    record: run_record.RunRecord
    hear: Hear
    say: Say
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _state: str = ""
    _attempt: int = 0
    _told: int = field(default=0)  # number of events of that attempt already reported
    _lines: deque[bytes] = field(default_factory=deque)  # log lines not yet passed to `hear`
    _silent_since: float | None = None  # time of the first failed read of storage; None: it answers

    def __post_init__(self) -> None:
        self._tail = self.record.open_tail()

    def skip(self, but: int = 0) -> None:
        """Skip the lines that the log holds already, except the last `but`."""
        lines = list(self._tail.read_new_lines())
        for line in lines[len(lines) - but :] if but else ():
            self.hear(line)

    def look(self) -> run_record.RunStatus:
        """Report news and return the status. Raises ClusterError or OSError if storage fails."""
        status, events = self._read()
        while self._lines:
            self.hear(self._lines.popleft())
        self._tell(status, events)
        if status.state != self._state:
            self._state = status.state
            if not status.ended:
                self.say(f"{self.record.id}: {_describe_status(status)}")
        return status

    def watch(self) -> Iterator[run_record.RunStatus]:
        """Yield the status repeatedly until the run has ended.

        Nothing is yielded while storage fails. Raises ClusterError if it fails for SILENT_SECONDS.
        """
        seconds = LOOK_SECONDS_S3 if storage.is_remote(self.record.path) else LOOK_SECONDS
        while True:
            try:
                status = self.look()
            except (ClusterError, OSError) as error:
                self._tolerate_silence(error)
            else:
                self._silent_since = None
                yield status
                if status.ended:
                    return
            self.sleep(seconds)

    def _tolerate_silence(self, error: Exception) -> None:
        """Raise ClusterError if storage has failed for SILENT_SECONDS; else warn once."""
        if self._silent_since is None:
            self._silent_since = self.clock()
            self.say(f"{self.record.id}: {error}; trying again until storage answers")
        if self.clock() - self._silent_since >= SILENT_SECONDS:
            logs = f"trainrig logs {self.record.id} --home {shlex.quote(self.record.home)} --follow"
            raise ClusterError(
                f"{self.record.id}: no answer from storage for {SILENT_SECONDS:.0f} s "
                f"({error}); the run continues without being followed, `{logs}` follows "
                "it again"
            ) from error

    def _read(self) -> tuple[run_record.RunStatus, list[dict[str, Any]]]:
        """Read status, new log lines and the events of the newest attempt.

        The lines are queued in `_lines`.
        """
        status = self.record.read_status()
        # The log is read after the status, as it is complete before an end is recorded.
        for line in self._tail.read_new_lines():
            self._lines.append(line)  # added one by one, so that an error keeps the lines before it
        return status, list(
            self.record.read_events(status.attempt.number)
        ) if status.attempt else []

    def _tell(self, status: run_record.RunStatus, events: Sequence[Mapping[str, Any]]) -> None:
        number = status.attempt.number if status.attempt else 0
        if number != self._attempt:
            self._attempt = number
            self._told = 0
        for event in events[self._told :]:
            if text := _describe_event(event):
                self.say(f"{self.record.id}: {text}")
        self._told = len(events)


def exit_code(ended: Mapping[str, Any]) -> int:
    """Return the exit code of the run's verb; 128 plus the signal for one killed by a signal."""
    code = int(ended.get("exit_code", 1))
    return code if code >= 0 else 128 - code


def describe_end(ended: Mapping[str, Any]) -> str:
    """Describe the end of a run in one line."""
    why = f" ({ended['cause']})" if ended.get("cause", "") not in ("", ended["state"]) else ""
    message = f": {ended['message']}" if ended.get("message") else ""
    saved = ended.get("step")
    kept = ""
    if saved is not None and ended["state"] != run_record.DONE:
        tokens = f", {ended['tokens']:,} tokens" if ended.get("tokens") else ""
        kept = f"; saved at step {saved:,}{tokens}"
    usd = ended.get("usd")
    cost = f"; {usd:,.2f} USD" if usd else ""
    return f"{ended['state']}{why}{message}{kept}{cost}"


def _describe_status(status: run_record.RunStatus) -> str:
    number = status.attempt.number if status.attempt else 0
    if status.state == run_record.LOST:
        return f"attempt {number} has sent no heartbeat for too long"
    at = f" at {status.attempt.address}" if status.attempt and status.state == "queued" else ""
    return f"attempt {number} is {status.state}{at}"


def _describe_event(event: Mapping[str, Any]) -> str:
    """Return the line to print for an event; "" for most."""
    if event["event"] == "retried":
        return f"{event['cause']}: {event['message']}; retrying in {event['seconds']:.0f} s"
    if event["event"] == "other_versions":
        return f"the cluster has other versions ({event['differences']}); see the log"
    if event["event"] == "notified":
        return "the notification command was run"
    return describe_end(event) if event["event"] == run_record.ENDED else ""


MARGIN_SECONDS = 30.0  # added to the grace time: to notice the request, and to record the end
JOB_SECONDS = 15.0  # seconds for Ray to end a job


def stop(
    record: run_record.RunRecord, now: bool, say: Callable[[str], None]
) -> Mapping[str, Any] | None:
    """Stop the run of `record` and return its end; None if it is lost and its cluster is silent.

    `now` skips the wait for a checkpoint: the work since the last one is lost.
    """
    status = record.read_status()
    if status.ended or status.attempt is None:
        return status.ended or None
    attempt = status.attempt
    jobs = RayJobs(status.attempt.address)
    record.request_stop()
    if not now and status.state != run_record.LOST:
        if end := _wait(record, attempt, jobs, say):
            return end
        say(f"{record.id}: did not end within its grace time; ending its job now")
    return _end_job(record, attempt, jobs, say)


def _wait(
    record: run_record.RunRecord,
    attempt: run_record.JobAttempt,
    jobs: RayJobs,
    say: Callable[[str], None],
) -> Mapping[str, Any] | None:
    """Return the end if it comes within the grace time; None also if the job never began."""
    grace = float(attempt.limits.get("grace", Limits().grace))
    until = time.monotonic() + grace + MARGIN_SECONDS
    following = Following(record, lambda line: None, say)
    for status in following.watch():
        if status.ended:
            return status.ended
        if time.monotonic() > until or not _may_run(status.state, jobs, attempt):
            return None
    return None


def _may_run(state: str, jobs: RayJobs, attempt: run_record.JobAttempt) -> bool:
    """Return whether an end may still come, unlike for a job that is pending or over."""
    if state != "queued":
        return state != run_record.LOST
    try:
        job = jobs.fetch_job(attempt.submission_id)
    except ClusterError:
        return True
    return job is not None and job.status == "RUNNING"


def _end_job(
    record: run_record.RunRecord,
    attempt: run_record.JobAttempt,
    jobs: RayJobs,
    say: Callable[[str], None],
) -> Mapping[str, Any] | None:
    try:
        jobs.stop(attempt.submission_id)
        until = time.monotonic() + JOB_SECONDS
        while (job := jobs.fetch_job(attempt.submission_id)) and not job.over:
            if time.monotonic() > until:
                raise ClusterError(f"{jobs.address}: the job did not end")
            time.sleep(0.2)
    except ClusterError as error:
        say(f"{record.id}: {error}")
        return None
    if ended := record.read_status().ended:
        return ended
    end_as_stopped(record, attempt)
    return record.read_status().ended


def end_as_stopped(record: run_record.RunRecord, attempt: run_record.JobAttempt) -> None:
    """Record that `attempt`, which was asked to end, has no job any more."""
    end = {
        "state": run_record.STOPPED,
        "cause": "stopped",
        "exit_code": Unfinished.exit_code,
        "message": "its job was ended; submit the run again to continue from its last checkpoint",
    }
    record.record(run_record.ENDED, attempt.number, **end)
