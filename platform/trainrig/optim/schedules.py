"""The share of the peak learning rate at each step: pure functions of the step.

Steps count from 0. A warm-up of w steps goes 1/w, 2/w … 1, so that no step is wasted at rate 0.
What falls is at its floor at the last step, where a floor of 0 changes nothing. The only step of a
run is taken at the peak: it would be the last one.
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

    # Steps in which the rate rises linearly; None: a tenth of the run, but at most 2,000.
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


def _is_only_step(step: int, steps: int) -> bool:
    return step == 0 and steps == 1


class Cosine(_Warmed):
    """Warm up, then fall along half a cosine (Loshchilov & Hutter 2017, arXiv:1608.03983)."""

    kind: Literal["Cosine"] = "Cosine"
    # Learning rate at the end, as a share of the peak; Llama's (arXiv:2302.13971).
    floor: float = Field(default=0.1, ge=0, le=1)

    def multiplier(self, step: int, steps: int) -> float:
        """The share of the peak at `step` of `steps`; `floor` at the last step and ever after."""
        warmup = self.warmup_steps(steps)
        if step < warmup:
            return (step + 1) / warmup
        if _is_only_step(step, steps):
            return 1.0
        fallen = min(1.0, (step + 1 - warmup) / (steps - warmup))  # share of the way down
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * fallen)) / 2


class Polynomial(_Warmed):
    """Warm up, then fall as a power of the share of the run that is left; `power` 1 is a line."""

    kind: Literal["Polynomial"] = "Polynomial"
    power: float = Field(default=2.0, gt=0, allow_inf_nan=False)  # exponent of the fall
    # Learning rate at the end, as a share of the peak.
    floor: float = Field(default=0.0, ge=0, le=1)

    def multiplier(self, step: int, steps: int) -> float:
        """The share of the peak at `step` of `steps`; `floor` at the last step and ever after."""
        warmup = self.warmup_steps(steps)
        if step < warmup:
            return (step + 1) / warmup
        if _is_only_step(step, steps):
            return 1.0
        left = max(0.0, (steps - step - 1) / (steps - warmup))
        return float(self.floor + (1 - self.floor) * left**self.power)


class Linear(_Warmed):
    """Warm up, then fall along a line; to 0 it does best of all (Bergsma et al. 2025,
    arXiv:2502.15938)."""

    kind: Literal["Linear"] = "Linear"
    # Learning rate at the end, as a share of the peak.
    floor: float = Field(default=0.0, ge=0, le=1)

    def multiplier(self, step: int, steps: int) -> float:
        """The share of the peak at `step` of `steps`; `floor` at the last step and ever after."""
        warmup = self.warmup_steps(steps)
        if step < warmup:
            return (step + 1) / warmup
        if _is_only_step(step, steps):
            return 1.0
        left = max(0.0, (steps - step - 1) / (steps - warmup))
        return self.floor + (1 - self.floor) * left


class InverseSquareRoot(_Warmed):
    """Warm up, then fall as 1 / sqrt(step) (Vaswani et al. 2017, arXiv:1706.03762, section 5.3).

    The rate does not depend on how long the run is, if `warmup` is given.
    """

    kind: Literal["InverseSquareRoot"] = "InverseSquareRoot"
    # Steps after the warm-up's end until the rate has fallen to 0.71 of the peak (1 / sqrt(2));
    # None: as many as the warm-up has, which is the paper's.
    timescale: int | None = Field(default=None, ge=1)

    def multiplier(self, step: int, steps: int) -> float:
        """The share of the peak at `step` of `steps`."""
        warmup = self.warmup_steps(steps)
        if step < warmup:
            return (step + 1) / warmup
        scale = self.timescale or max(1, warmup)
        return math.sqrt(scale / (scale + max(0, step + 1 - max(1, warmup))))


class Constant(_Warmed):
    """Warm up, then stay at the peak."""

    kind: Literal["Constant"] = "Constant"

    def multiplier(self, step: int, steps: int) -> float:
        """The share of the peak at `step` of `steps`."""
        warmup = self.warmup_steps(steps)
        return (step + 1) / warmup if step < warmup else 1.0


class WarmupStableDecay(_Warmed):
    """Warm up, stay at the peak, and fall at the end, by 1 - sqrt if not otherwise said (Hägele et
    al. 2024, arXiv:2405.18392, section 3.2).

    Until it falls the rate does not depend on how long the run is. So, with `warmup` given, a run
    of any length has the same weights as a longer one up to `stable_steps`: one that is saved there
    can be branched from, and the branch is the shorter run.
    """

    kind: Literal["WarmupStableDecay"] = "WarmupStableDecay"
    # Share of the run in which the rate falls; from 0.2 on it does as well as a cosine (same, fig.
    # 5).
    decay: float = Field(default=0.2, gt=0, le=1)
    # Learning rate at the end, as a share of the peak.
    floor: float = Field(default=0.0, ge=0, le=1)
    # Form of the fall, x being the share of it that is behind: 1 - sqrt(x), 1 - x, or half a
    # cosine.
    form: Literal["sqrt", "linear", "cosine"] = "sqrt"

    def stable_steps(self, steps: int) -> int:
        """Steps of a run of `steps` before it begins to fall."""
        return max(steps - math.ceil(self.decay * steps), self.warmup_steps(steps))

    def multiplier(self, step: int, steps: int) -> float:
        """The share of the peak at `step` of `steps`; `floor` at the last step and ever after."""
        warmup, stable = self.warmup_steps(steps), self.stable_steps(steps)
        if step < warmup:
            return (step + 1) / warmup
        if step < stable or _is_only_step(step, steps):
            return 1.0
        fallen = min(1.0, (step + 1 - stable) / (steps - stable))  # share of the way down
        return self.floor + (1 - self.floor) * self._compute_left(fallen)

    def _compute_left(self, fallen: float) -> float:
        if self.form == "linear":
            return 1 - fallen
        if self.form == "cosine":
            return (1 + math.cos(math.pi * fallen)) / 2
        return 1 - math.sqrt(fallen)
