"""What a run file says of faults: how long to wait for what, and when to give up."""

from typing import Annotated

from pydantic import Field

from trainrig.config import PLACE, Settings


class Faults(Settings):
    """How a run meets the failure of its workers, and a wish to stop. All times in seconds."""

    max_restarts: Annotated[int, PLACE] = Field(default=5, ge=0)  # without a new checkpoint between
    # Before the second restart without a new checkpoint; doubled before each more, up to the
    # longest. The first restart waits for nothing: most faults are gone with their process.
    back_off: Annotated[float, PLACE] = Field(default=1.0, ge=0)
    longest_back_off: Annotated[float, PLACE] = Field(default=60.0, ge=0)
    # That a collective waits for a rank before the attempt counts as failed.
    collective_timeout: Annotated[float, PLACE] = Field(default=60.0, gt=0)
    # Without progress of a rank before its attempt is killed: so many of its usual steps, and
    # never less than the seconds. The first of a kind (step, save, evaluation) may be compiling
    # or allocating, and gets `start_limit`.
    hang_seconds: Annotated[float, PLACE] = Field(default=30.0, gt=0)
    hang_steps: Annotated[float, PLACE] = Field(default=10.0, gt=1)
    start_limit: Annotated[float, PLACE] = Field(default=600.0, gt=0)
    # Between a request to stop and the kill: what a cloud gives before it takes a machine back.
    grace: Annotated[float, PLACE] = Field(default=30.0, gt=0)
    # That a larger cluster must last before the run moves to it: nodes often come in groups.
    settle: Annotated[float, PLACE] = Field(default=1.0, ge=0)
    # With fewer nodes than `workers` needs, before the run is given up.
    wait_for_nodes: Annotated[float, PLACE] = Field(default=1800.0, ge=0)
