"""Learning-rate schedules: the share of the peak rate as a pure function of the step.

Steps count from 0. A warm-up of w steps goes 1/w, 2/w … 1, so that no step has a rate of 0. A
decaying schedule reaches its floor at the last step, where a floor of 0 changes nothing. The only
step of a one-step run is taken at the peak, because it would otherwise be the last one.
"""

import math
from typing import Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.errors import ConfigError

# Llama's warm-up (Touvron et al. 2023, arXiv:2302.13971, section 2.3), and the maximum share of a
# short run.
LONGEST_WARMUP = 2_000  # steps
WARMUP_SHARE = 10  # at most a tenth of the run


class _Warmed(Settings):
    """Base of all schedules: a linear warm-up."""

    # Number of steps in which the rate rises linearly. None: a tenth of the run, at most 2,000.
    warmup: int | None = Field(default=None, ge=0)

    def warmup_steps(self, steps: int) -> int:
        """Return the length of the warm-up in a run of `steps` steps.

        Raises ConfigError if the warm-up does not end before the run.
        """
        if self.warmup is None:
            return min(LONGEST_WARMUP, steps // WARMUP_SHARE)
        if self.warmup >= steps:
            raise ConfigError(
                f"schedule.warmup ({self.warmup} steps) must end before the run does ({steps} "
                f"steps); remove it to use {min(LONGEST_WARMUP, steps // WARMUP_SHARE)}"
            )
        return self.warmup

    def multiplier(self, step: int, steps: int) -> float:
        """Return the share of the peak at `step` of `steps`; later steps keep the last share."""
        warmup = self.warmup_steps(steps)
        if step < warmup:
            return (step + 1) / warmup
        return 1.0 if (step, steps) == (0, 1) else self._compute_after(step, steps, warmup)

    def _compute_after(self, step: int, steps: int, warmup: int) -> float:
        """Return the share of the peak after the warm-up."""
        return 1.0


class Cosine(_Warmed):
    """Warm-up, then a fall along half a cosine (Loshchilov & Hutter 2017, arXiv:1608.03983)."""

    kind: Literal["Cosine"] = "Cosine"
    # Learning rate at the end, as a share of the peak; the default is Llama's (arXiv:2302.13971).
    floor: float = Field(default=0.1, ge=0, le=1)

    def _compute_after(self, step: int, steps: int, warmup: int) -> float:
        fallen = min(1.0, (step + 1 - warmup) / (steps - warmup))  # share of the way down
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * fallen)) / 2


class Polynomial(_Warmed):
    """Warm-up, then a fall as a power of the remaining share of the run; `power` 1 is linear."""

    kind: Literal["Polynomial"] = "Polynomial"
    power: float = Field(default=2.0, gt=0, allow_inf_nan=False)  # exponent of the fall
    # Learning rate at the end, as a share of the peak.
    floor: float = Field(default=0.0, ge=0, le=1)

    def _compute_after(self, step: int, steps: int, warmup: int) -> float:
        left = max(0.0, (steps - step - 1) / (steps - warmup))
        return float(self.floor + (1 - self.floor) * left**self.power)


class Linear(_Warmed):
    """Warm-up, then a linear fall.

    A fall to 0 gives the best results (Bergsma et al. 2025, arXiv:2502.15938).
    """

    kind: Literal["Linear"] = "Linear"
    # Learning rate at the end, as a share of the peak.
    floor: float = Field(default=0.0, ge=0, le=1)

    def _compute_after(self, step: int, steps: int, warmup: int) -> float:
        left = max(0.0, (steps - step - 1) / (steps - warmup))
        return self.floor + (1 - self.floor) * left


class InverseSquareRoot(_Warmed):
    """Warm-up, then a fall as 1 / sqrt(step) (Vaswani et al. 2017, arXiv:1706.03762, section 5.3).

    The rate does not depend on the length of the run, if `warmup` is given.
    """

    kind: Literal["InverseSquareRoot"] = "InverseSquareRoot"
    # Number of steps after the warm-up until the rate has fallen to 0.71 of the peak (1 / sqrt(2)).
    # None: the length of the warm-up, as in the paper.
    timescale: int | None = Field(default=None, ge=1)

    def _compute_after(self, step: int, steps: int, warmup: int) -> float:
        scale = self.timescale or max(1, warmup)
        return math.sqrt(scale / (scale + max(0, step + 1 - max(1, warmup))))


class Constant(_Warmed):
    """Warm-up, then a constant rate at the peak."""

    kind: Literal["Constant"] = "Constant"


class WarmupStableDecay(_Warmed):
    """Warm-up, a constant rate at the peak, and a fall at the end, by default as 1 - sqrt.

    Hägele et al. 2024, arXiv:2405.18392, section 3.2. Before the fall, the rate does not depend on
    the length of the run. With `warmup` given, a run of any length therefore has the same weights
    as a longer one up to `stable_steps`. A checkpoint of that step can be branched from, and the
    branch equals the shorter run.
    """

    kind: Literal["WarmupStableDecay"] = "WarmupStableDecay"
    # Share of the run in which the rate falls; from 0.2 on it does as well as a cosine (figure 5 of
    # the paper).
    decay: float = Field(default=0.2, gt=0, le=1)
    # Learning rate at the end, as a share of the peak.
    floor: float = Field(default=0.0, ge=0, le=1)
    # Form of the fall, with x the completed share of it: 1 - sqrt(x), 1 - x, or half a cosine.
    form: Literal["sqrt", "linear", "cosine"] = "sqrt"

    def stable_steps(self, steps: int) -> int:
        """Return the number of steps of a run of `steps` steps before the rate begins to fall."""
        return max(steps - math.ceil(self.decay * steps), self.warmup_steps(steps))

    def _compute_after(self, step: int, steps: int, warmup: int) -> float:
        stable = self.stable_steps(steps)
        if step < stable:
            return 1.0
        fallen = min(1.0, (step + 1 - stable) / (steps - stable))  # share of the way down
        left = 1 - math.sqrt(fallen)
        if self.form == "linear":
            left = 1 - fallen
        elif self.form == "cosine":
            left = (1 + math.cos(math.pi * fallen)) / 2
        return self.floor + (1 - self.floor) * left
