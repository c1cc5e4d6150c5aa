"""The share of the peak learning rate at each step: pure functions of the step.

Steps count from 0. A warm-up of w steps goes 1/w, 2/w … 1, so that no step is wasted at rate 0.
"""

import math
from typing import Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.errors import ConfigError

# Llama's warm-up (Touvron et al. 2023, arXiv:2302.13971, section 2.3), and what of a short run may
# be spent on one.
LONGEST_WARMUP = 2_000  # steps
WARMUP_SHARE = 10  # a tenth of the run


class _Warmed(Settings):
    """What every schedule begins with."""

    # Steps of linear rise. None: a tenth of the run, but no more than 2,000.
    warmup: int | None = Field(default=None, ge=0)

    def warmup_steps(self, steps: int) -> int:
        """The length of the warm-up in a run of `steps` steps.

        Raises ConfigError when the run would be over before its warm-up is.
        """
        if self.warmup is None:
            return min(LONGEST_WARMUP, steps // WARMUP_SHARE)
        if self.warmup >= steps:
            raise ConfigError(
                f"schedule.warmup ({self.warmup} steps) must end before the run does "
                f"({steps} steps); leave it out for {min(LONGEST_WARMUP, steps // WARMUP_SHARE)}"
            )
        return self.warmup


class Cosine(_Warmed):
    """Warm up, then fall along half a cosine (Loshchilov & Hutter 2017, arXiv:1608.03983)."""

    kind: Literal["Cosine"] = "Cosine"
    floor: float = Field(default=0.1, ge=0, le=1)  # share of the peak; Llama's (arXiv:2302.13971)

    def multiplier(self, step: int, steps: int) -> float:
        """The share of the peak at `step` of `steps`; `floor` at the last step and ever after."""
        warmup = self.warmup_steps(steps)
        if step < warmup:
            return (step + 1) / warmup
        fallen = min(1.0, (step + 1 - warmup) / (steps - warmup))  # share of the way down
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * fallen)) / 2


class Constant(_Warmed):
    """Warm up, then stay at the peak."""

    kind: Literal["Constant"] = "Constant"

    def multiplier(self, step: int, steps: int) -> float:
        """The share of the peak at `step` of `steps`."""
        warmup = self.warmup_steps(steps)
        return (step + 1) / warmup if step < warmup else 1.0
