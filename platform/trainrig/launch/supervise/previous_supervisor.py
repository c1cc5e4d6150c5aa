"""Makes sure that no earlier attempt still writes: two drivers never share one output."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trainrig.launch.cost.spending import Spent
from trainrig.launch.record.run_record import ENDED, LOST_SECONDS, RunRecord
from trainrig.processes.lease import EXPIRE_SECONDS, LeaseOwner

LOOK_SECONDS = 1.0
# Events by a job supervisor, which say what its attempt took; after the first two it has no child.
# An end without that was written by somebody else, who cannot know.
OVER = (ENDED, "superseded")
ACCOUNTS = (*OVER, "spent")


@dataclass(frozen=True)
class PreviousUsage:
    """What all earlier attempts took."""

    spent: Spent
    supervised: float  # seconds


def settle_previous_supervisors(
    record: RunRecord, attempt: int, check_need: Callable[[], None]
) -> PreviousUsage:
    """Wait until nobody drives an earlier attempt than `attempt`; what they took together.

    `check_need` is called at each look, and raises if there is no point in waiting. The cost of
    one that died is put on record as its last beat has it: the next beat replaces that.
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
        sum((Spent.of_json(line) for line in took.values()), Spent()),
        sum(float(line["attended"]) for line in took.values()),
    )


_SPENT = {"usd", "usd_at_least", "usd_at_most"}


def _is_account(event: Mapping[str, Any], kinds: tuple[str, ...]) -> bool:
    return event["event"] in kinds and "attended" in event


def _may_be_alive(record: RunRecord, heartbeat: Mapping[str, Any], attempt: int) -> bool:
    """Whether whoever gave `heartbeat` may still have a child."""
    if heartbeat["attempt"] >= attempt:
        return False
    if any(_is_account(event, OVER) for event in record.read_events(heartbeat["attempt"])):
        return False
    try:
        owner = LeaseOwner.model_validate(heartbeat["owner"])
    except (KeyError, ValidationError):
        return bool(time.time() - heartbeat["time"] <= LOST_SECONDS)
    # On this machine its process tells; of another we say so when the run is called lost.
    heard = heartbeat["time"] + LOST_SECONDS - EXPIRE_SECONDS
    return not owner.model_copy(update={"renewed": heard}).gone()
