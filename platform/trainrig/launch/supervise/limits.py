"""Limits of an attempt at a run, and what happens when it fails."""

import shlex
from typing import Annotated, Self

from pydantic import model_validator

from trainrig.config import Field, Settings, suggest_choice
from trainrig.launch.supervise.end_causes import CAUSES, Cause

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# How often a run is begun again after each cause, where the user does not say. What the user alone
# can change is not retried; nor is what the user asked for. Machines come back: a node that is lost
# costs a start, a preemption not even that, as it ends whole. A bug may have been a race: once.
RETRIES: dict[Cause, int] = {
    "cluster": 3,
    "lost node": 5,
    "preempted": 100,
    "unknown": 1,
}
NEVER: tuple[Cause, ...] = ("done", "input", "stopped", "out of budget", "deadline")


class Limits(Settings):
    """Bounds of one attempt, its retries included."""

    max_cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # USD; None: no end.
    # Of the run: what its earlier attempts cost counts.
    deadline: Seconds | None = None  # s from submission to the end; None: no end
    pending: Seconds = 900.0  # s from submission to the first sign of life, then it is given up
    grace: Seconds = 120.0  # s to checkpoint in; two minutes is also what AWS gives a spot machine
    back_off: Seconds = 5.0  # s before the first retry; each one that gets nowhere doubles it
    longest_back_off: Seconds = 300.0  # s
    retries: dict[str, Annotated[int, Field(ge=0)]] = Field({})  # by cause; else as RETRIES says
    hardware: str | None = None  # a table of prices: of the submitter, then the record's copy of it
    notify: str | None = None  # a command that is told of the end; no shell looks at it
    notify_seconds: Seconds = 30.0  # s that it may take

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
                raise ValueError("notify: names no command; leave it out")
        return self

    def get_budget(self, cause: Cause) -> int:
        """How often a run that ended by `cause` may be begun again."""
        return self.retries.get(cause, RETRIES.get(cause, 0))
