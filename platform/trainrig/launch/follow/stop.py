"""Stopping of a run: it is asked to save and end, and only later is its job ended.

Ray alone would kill the job 3 s after SIGTERM.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from trainrig.errors import ClusterError, Unfinished
from trainrig.launch.follow.follow import Following
from trainrig.launch.ray_jobs import RayJobs
from trainrig.launch.record.run_record import ENDED, LOST, STOPPED, JobAttempt, RunRecord
from trainrig.launch.supervise.limits import Limits

MARGIN_SECONDS = 30.0  # added to the grace time: to notice the request, and to record the end
JOB_SECONDS = 15.0  # seconds for Ray to end a job


def stop(record: RunRecord, now: bool, say: Callable[[str], None]) -> Mapping[str, Any] | None:
    """Stop the run of `record` and return its end; None if it is lost and its cluster is silent.

    `now` skips the wait for a checkpoint: the work since the last one is lost.
    """
    status = record.read_status()
    if status.ended or status.attempt is None:
        return status.ended or None
    attempt = status.attempt
    jobs = RayJobs(status.attempt.address)
    record.request_stop()
    if not now and status.state != LOST:
        if end := _wait(record, attempt, jobs, say):
            return end
        say(f"{record.id}: did not end within its grace time; ending its job now")
    return _end_job(record, attempt, jobs, say)


def _wait(
    record: RunRecord, attempt: JobAttempt, jobs: RayJobs, say: Callable[[str], None]
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


def _may_run(state: str, jobs: RayJobs, attempt: JobAttempt) -> bool:
    """Return whether an end may still come, unlike for a job that is pending or over."""
    if state != "queued":
        return state != LOST
    try:
        job = jobs.fetch_job(attempt.submission_id)
    except ClusterError:
        return True
    return job is not None and job.status == "RUNNING"


def _end_job(
    record: RunRecord, attempt: JobAttempt, jobs: RayJobs, say: Callable[[str], None]
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


def end_as_stopped(record: RunRecord, attempt: JobAttempt) -> None:
    """Record that `attempt`, which was asked to end, has no job any more."""
    end = {
        "state": STOPPED,
        "cause": "stopped",
        "exit_code": Unfinished.exit_code,
        "message": "its job was ended; submit the run again to continue from its last checkpoint",
    }
    record.record(ENDED, attempt.number, **end)
