"""Limits of an attempt at a run, and what happens when it fails."""

import shlex
from typing import Annotated, Self

from pydantic import model_validator

from trainrig.config import Field, Settings, suggest_choice
from trainrig.launch.supervise.end_causes import CAUSES, Cause

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# How often a run is retried after each cause, unless the user sets another number. A failure that
# only the user can fix is not retried, nor is an end that the user requested. A lost node costs one
# restart, and a preempted run has saved before it ended, so both are retried often. An unknown
# failure may be a race condition: one retry.
RETRIES: dict[Cause, int] = {
    "cluster": 3,
    "lost node": 5,
    "preempted": 100,
    "unknown": 1,
}
NEVER: tuple[Cause, ...] = ("done", "input", "stopped", "out of budget", "deadline")


class Limits(Settings):
    """Bounds of one attempt at a run, including its retries."""

    # USD; None: no limit.
    max_cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    # The cost of earlier attempts at the run counts as well.
    deadline: Seconds | None = None  # seconds from submission to the end; None: no limit
    pending: Seconds = 900.0  # seconds from submission to the first heartbeat, before giving up
    grace: Seconds = 120.0  # seconds to save a checkpoint in; a spot machine of AWS also gives 120
    back_off: Seconds = 5.0  # seconds before the first retry; doubled after each without progress
    longest_back_off: Seconds = 300.0  # seconds, at most, before a retry
    retries: dict[str, Annotated[int, Field(ge=0)]] = Field({})  # limit by cause; default: RETRIES
    hardware: str | None = None  # path of a price table; later of its copy in the run's record
    notify: str | None = None  # command to run at the end, without a shell
    notify_seconds: Seconds = 30.0  # seconds until that command is killed

    @model_validator(mode="after")
    def _causes_exist(self) -> Self:
        choices = [cause for cause in CAUSES if cause not in NEVER]
        for cause in self.retries:
            if cause in NEVER:
                raise ValueError(f"retries: '{cause}' is never retried; leave it out")
            if cause not in choices:
                raise ValueError(f"retries: no cause '{cause}'{suggest_choice(cause, choices)}")
        return self

    @model_validator(mode="after")
    def _notify_can_be_split(self) -> Self:
        if self.notify is not None:
            try:
                words = shlex.split(self.notify)
            except ValueError as error:
                raise ValueError(f"notify: {self.notify!r}: {error}") from None
            if not words:
                raise ValueError("notify: no command given; give one, or leave it out")
        return self

    def get_budget(self, cause: Cause) -> int:
        """Return how often a run that ended by `cause` may be retried."""
        return self.retries.get(cause, RETRIES.get(cause, 0))
