"""What a run file says of faults: how long to wait for what, and when to give up."""

from typing import Annotated

from pydantic import Field

from trainrig.config import NOT_IDENTITY, Settings


class Faults(Settings):
    """How a run meets the failure of its workers, and a stop request. All times in seconds."""

    # Restarts without a new checkpoint between them before the run is given up.
    max_restarts: Annotated[int, NOT_IDENTITY] = Field(default=5, ge=0)
    # Attempts that failed by one node (a rank died there, or its device broke) after which
    # this run puts no worker on it again, as long as there is room for enough without it.
    quarantine_after: Annotated[int, NOT_IDENTITY] = Field(default=3, ge=1)
    # Seconds before the second restart without a new checkpoint, doubled for each further one; the
    # first waits for nothing.
    back_off: Annotated[float, NOT_IDENTITY] = Field(default=1.0, ge=0)
    # Seconds that `back_off` may grow to.
    longest_back_off: Annotated[float, NOT_IDENTITY] = Field(default=60.0, ge=0)
    # Seconds that a collective waits for a rank before the attempt has failed.
    collective_timeout: Annotated[float, NOT_IDENTITY] = Field(default=60.0, gt=0)
    # Seconds without progress of a rank, at least, before its attempt is killed; the limit is the
    # larger of this and `hang_steps`.
    hang_seconds: Annotated[float, NOT_IDENTITY] = Field(default=30.0, gt=0)
    # Usual step times without progress of a rank, at least, before its attempt is killed.
    hang_steps: Annotated[float, NOT_IDENTITY] = Field(default=10.0, gt=1)
    # Seconds that the first step, save or evaluation of an attempt may take: it may be compiling or
    # allocating.
    start_limit: Annotated[float, NOT_IDENTITY] = Field(default=600.0, gt=0)
    # Seconds between a request to stop and the kill; clouds give about as much before they take a
    # machine back.
    grace: Annotated[float, NOT_IDENTITY] = Field(default=30.0, gt=0)
    # Seconds that a larger cluster must last before the run moves to it: nodes often come in
    # groups.
    settle: Annotated[float, NOT_IDENTITY] = Field(default=1.0, ge=0)
    # Seconds to wait with fewer nodes than `workers` needs before the run is given up.
    wait_for_nodes: Annotated[float, NOT_IDENTITY] = Field(default=1800.0, ge=0)
