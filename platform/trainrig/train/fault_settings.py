"""Run-file settings for fault handling: how long to wait, and when to give up."""

from typing import Annotated

from pydantic import Field

from trainrig.config import NOT_IDENTITY, Settings


class Faults(Settings):
    """Handling of worker failures and stop requests in a run. All times are in seconds."""

    # Restarts allowed without a new checkpoint between them. One more failure ends the run.
    max_restarts: Annotated[int, NOT_IDENTITY] = Field(default=5, ge=0)
    # Failed attempts caused by one node (a rank died there, or its device broke) after which the
    # run no longer uses that node, as long as enough workers fit on the others.
    quarantine_after: Annotated[int, NOT_IDENTITY] = Field(default=3, ge=1)
    # Seconds to wait before the second restart without a new checkpoint; doubled for each further
    # one. The first restart does not wait.
    back_off: Annotated[float, NOT_IDENTITY] = Field(default=1.0, ge=0)
    # Upper limit of `back_off`, in seconds.
    longest_back_off: Annotated[float, NOT_IDENTITY] = Field(default=60.0, ge=0)
    # Seconds that a collective operation waits for a rank before the attempt fails.
    collective_timeout: Annotated[float, NOT_IDENTITY] = Field(default=60.0, gt=0)
    # Seconds without progress of a rank before its attempt is killed. The limit is the larger of
    # this and `hang_steps`.
    hang_seconds: Annotated[float, NOT_IDENTITY] = Field(default=30.0, gt=0)
    # Time without progress of a rank before its attempt is killed, in usual step times. The limit
    # is the larger of this and `hang_seconds`.
    hang_steps: Annotated[float, NOT_IDENTITY] = Field(default=10.0, gt=1)
    # Seconds allowed for the first step, save or evaluation of an attempt, which may include
    # compilation and memory allocation.
    start_limit: Annotated[float, NOT_IDENTITY] = Field(default=600.0, gt=0)
    # Seconds between a stop request and the kill. Clouds give about as much notice before they take
    # a machine back.
    grace: Annotated[float, NOT_IDENTITY] = Field(default=30.0, gt=0)
    # Seconds that additional nodes must stay before the run moves to the larger cluster: nodes
    # often arrive in groups.
    settle: Annotated[float, NOT_IDENTITY] = Field(default=1.0, ge=0)
    # Seconds to wait with fewer nodes than `workers` needs before the run gives up.
    wait_for_nodes: Annotated[float, NOT_IDENTITY] = Field(default=1800.0, ge=0)
