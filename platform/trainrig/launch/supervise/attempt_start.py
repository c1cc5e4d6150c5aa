"""Checks at the start of an attempt: earlier attempts have ended, and library versions are equal.

Two drivers never share one output folder, so an attempt waits until no earlier one still writes.

Differences of library versions between submitter and cluster, on which results may depend, are
logged and recorded, and the run continues. `manifest` guards that a resumed run gives equal bytes:
it compares the versions that a run began with to those that continue it.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trainrig import manifest
from trainrig.launch.supervise.metered_cost import Spent
from trainrig.launch.supervise.run_record import ENDED, LOST_SECONDS, RunRecord
from trainrig.processes.lease import EXPIRE_SECONDS, LeaseOwner

LOOK_SECONDS = 1.0
# Events with which a job supervisor reports what its attempt took. After the first two, it has no
# child process. An `ended` event without these figures was written by another process.
OVER = (ENDED, "superseded")
ACCOUNTS = (*OVER, "spent")


@dataclass(frozen=True)
class PreviousUsage:
    """Cost and time of all earlier attempts."""

    spent: Spent
    supervised: float  # seconds


def settle_previous_supervisors(
    record: RunRecord, attempt: int, check_need: Callable[[], None]
) -> PreviousUsage:
    """Wait until no process drives an attempt before `attempt`, and return what they took.

    `check_need` is called at each check, and raises if waiting has become pointless. If a
    supervisor died, the cost in its last heartbeat is recorded as an event, as the next heartbeat
    replaces it.
    """
    while (heartbeat := record.read_last_heartbeat()) and _may_be_alive(record, heartbeat, attempt):
        check_need()
        time.sleep(LOOK_SECONDS)
    took = {
        event["attempt"]: event
        for event in record.read_events()
        if _is_account(event, ACCOUNTS) and event["attempt"] < attempt
    }
    if heartbeat and heartbeat["attempt"] < attempt and heartbeat["attempt"] not in took:
        left = {n: heartbeat[n] for n in (*heartbeat.keys() & _SPENT, "node_seconds", "attended")}
        record.record("spent", heartbeat["attempt"], **left)
        took[heartbeat["attempt"]] = left
    return PreviousUsage(
        sum((Spent.from_json(line) for line in took.values()), Spent()),
        sum(float(line["attended"]) for line in took.values()),
    )


_SPENT = {"usd", "usd_at_least", "usd_at_most"}


def _is_account(event: Mapping[str, Any], kinds: tuple[str, ...]) -> bool:
    return event["event"] in kinds and "attended" in event


def _may_be_alive(record: RunRecord, heartbeat: Mapping[str, Any], attempt: int) -> bool:
    """Return whether the supervisor that wrote `heartbeat` may still have a child process."""
    if heartbeat["attempt"] >= attempt:
        return False
    if any(_is_account(event, OVER) for event in record.read_events(heartbeat["attempt"])):
        return False
    try:
        owner = LeaseOwner.model_validate(heartbeat["owner"])
    except (KeyError, ValidationError):
        return bool(time.time() - heartbeat["time"] <= LOST_SECONDS)
    # On this machine, whether the process exists decides. A supervisor on another machine counts as
    # dead from the moment its run is called lost.
    heard = heartbeat["time"] + LOST_SECONDS - EXPIRE_SECONDS
    return not owner.model_copy(update={"renewed": heard}).gone()


log = logging.getLogger(__name__)
SUBMITTED = "submitted"
OTHER_VERSIONS = "other_versions"


def compare_versions(record: RunRecord, attempt: int) -> str:
    """Return how the submitter's library versions differ from those here, or "" if equal."""
    submitted = next((e for e in record.read_events(attempt) if e["event"] == SUBMITTED), {})
    there = submitted.get("versions")
    if not isinstance(there, dict):
        return ""
    here = manifest.collect_environment()
    different = ", ".join(
        f"{name} {there.get(name, 'none')} there, {here.get(name, 'none')} here"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    )
    if different:
        log.warning("submitted from other versions: %s", different)
        record.record(OTHER_VERSIONS, attempt, differences=different)
    return different
