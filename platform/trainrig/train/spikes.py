"""Loss spikes: which steps to leave out of training, and which data to skip.

A step is an *outlier* if its loss or its gradient norm lies far above those of the updates before
it, measured in robust deviations (median and median absolute deviation, which outliers hardly
shift). No update is made from an outlier. Several outliers close together are a *spike*. Once it
has ended, or lasted too long, the run rolls back to a checkpoint before the spike and skips the
data of the spike and of some steps around it (PaLM, arXiv:2204.02311, section 5.1). The updates
just before a spike may have caused it.

A *data step* is the index of a batch in the order of the data. Skipped batches count, so it is not
the number of updates. A spike is at the *same place* as an earlier one if the range skipped for the
earlier one ends at most `window` data steps before it.

The detector is a pure function of the losses and norms that it observed, in the order of data
steps, and these are equal on all ranks. So every rank reaches the same decision, and a run that
repeats the steps, from any checkpoint, finds the same range.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from trainrig.config import Field, Settings

# Ratio of the standard deviation to the median absolute deviation, for a normal distribution.
NORMAL = 1.4826
# Lower limits of a deviation, so that a nearly constant series does not make everything an
# outlier: a share of the median loss, nats of loss, and a difference of the norm's logarithm.
LEAST_LOSS_DEVIATION = 0.01
# Memorised data has losses near 0 that differ by large factors: on sums of two digits, .0098 is 15
# deviations above .0007, and nothing is wrong.
LEAST_LOSS_NATS = 0.005
LEAST_NORM_DEVIATION = 0.1
TINY = 1e-30  # replaces 0, which has no logarithm
WIDER = 4  # factor on the margin before a spike, for each earlier roll-back to the same place


class Spikes(Settings):
    """When a step is an outlier, when outliers form a spike, and how the run reacts."""

    # Recent updates whose losses and norms are the reference. Until there are this many, no step is
    # an outlier.
    window: int = Field(default=128, ge=16)
    # Deviations above the median loss from which a step is an outlier.
    loss_deviations: float = Field(default=10.0, gt=0)
    # Deviations above the median logarithm of the gradient norm from which a step is an outlier.
    norm_deviations: float = Field(default=20.0, gt=0)
    # Number of outliers close together that form a spike. Fewer are skipped without further action.
    confirm: int = Field(default=3, ge=1)
    # Data steps to skip on either side of a spike. The same number of steps in a row without an
    # outlier ends the spike. Each further roll-back to the same place skips four times as many
    # steps before it.
    margin: int = Field(default=2, ge=1)
    # Steps after which a spike that has not ended is treated as ended.
    longest: int = Field(default=64, ge=1)
    # Number of roll-backs to the same place before the run ends with an error.
    rollbacks: int = Field(default=3, ge=0)
    # Factor on the learning rate after skipped data; 1 leaves the rate as it is.
    rate_cut: float = Field(default=1.0, gt=0, le=1)
    # Number of data steps after skipped data for which `rate_cut` applies.
    rate_cut_steps: int = Field(default=100, ge=1)


@dataclass(frozen=True, order=True)
class DataRange:
    """Data steps from `begin` (included) to `end` (excluded)."""

    begin: int
    end: int

    def __contains__(self, data_step: int) -> bool:
        return self.begin <= data_step < self.end

    def __str__(self) -> str:
        return f"{self.begin} to {self.end - 1}"


@dataclass(frozen=True)
class Spike:
    """Spike that has ended, or lasted as long as it may."""

    first: int  # data step of its first outlier
    last: int  # data step of its last outlier
    outliers: int
    skip: DataRange  # data to skip after the roll-back
    again: int  # earlier roll-backs to the same place


@dataclass
class _Open:
    """Outliers that may still become a spike."""

    first: int
    last: int
    outliers: int


class SpikeDetector:
    """Detector of outliers and spikes in the sequence of losses and gradient norms.

    With `settings` None, nothing is an outlier. `new_levels`: data steps at which the loss may
    change level, such as a change of the mixture; earlier steps are then no reference. `skipped`:
    ranges that earlier roll-backs skipped.
    """

    def __init__(
        self,
        settings: Spikes | None,
        new_levels: Sequence[int] = (),
        skipped: Iterable[DataRange] = (),
    ) -> None:
        self._settings = settings
        self._new_levels = tuple(sorted(new_levels))
        self.skipped = tuple(sorted(skipped))
        self._losses: list[float] = []  # losses of the newest updates, the oldest first
        self._norms: list[float] = []  # logarithms of the norms of the same updates
        self._open: _Open | None = None
        self._seen = 0  # the newest data step that was observed

    def observe(self, data_step: int, loss: float, norm: float) -> str | None:
        """Return in words why `data_step` is an outlier, or None if it is not.

        Call it once for each step that is computed, in order. An outlier counts towards a spike;
        any other finite step becomes part of the reference. Until the reference is full, even a
        loss that is not finite is no outlier; `step.StepFigures.fault` prevents its update.
        """
        if self._settings is None:
            return None
        if any(self._seen < level <= data_step for level in self._new_levels):
            self._losses = []
            self._norms = []
            self._open = None
        self._seen = data_step
        why = self._judge(loss, norm)
        if why:
            there = self._open or _Open(data_step, data_step, 0)
            self._open = _Open(there.first, data_step, there.outliers + 1)
        elif math.isfinite(loss) and math.isfinite(norm):
            window = self._settings.window
            self._losses = [*self._losses[1 - window :], loss]
            self._norms = [*self._norms[1 - window :], _take_logarithm(norm)]
        return why

    def find_spike(self) -> Spike | None:
        """Return the spike that has just ended, if any. Call it between two steps."""
        there = self._open
        settings = self._settings
        if there is None or settings is None:
            return None
        passed = self._seen - there.last >= settings.margin
        lasted = self._seen + 1 - there.first >= settings.longest
        if not passed and not lasted:
            return None
        self._open = None
        if there.outliers < settings.confirm:
            return None
        oldest = there.first - settings.window
        again = sum(
            skipped.begin <= there.first and skipped.end > oldest for skipped in self.skipped
        )
        begin = there.first - settings.margin * WIDER**again
        last = there.last if passed else self._seen
        skip = DataRange(max(0, begin), last + 1 + settings.margin)
        return Spike(there.first, there.last, there.outliers, skip, again)

    def gives_up(self, spike: Spike) -> bool:
        """Return whether the run has already used all its roll-backs to the place of `spike`."""
        return self._settings is not None and spike.again >= self._settings.rollbacks

    def compute_rate_share(self, data_step: int) -> float:
        """Return the factor on the learning rate of `data_step`."""
        if self._settings is None:
            return 1.0
        steps = self._settings.rate_cut_steps
        cuts = sum(
            data_step in DataRange(skipped.end, skipped.end + steps) for skipped in self.skipped
        )
        return float(self._settings.rate_cut**cuts)

    def _judge(self, loss: float, norm: float) -> str | None:
        assert self._settings is not None
        if len(self._losses) < self._settings.window:
            return None
        for what, value in (("loss", loss), ("gradient norm", norm)):
            if not math.isfinite(value):
                return f"{what} {value}"
        least = max(LEAST_LOSS_DEVIATION * abs(statistics.median(self._losses)), LEAST_LOSS_NATS)
        deviations, usual = _measure_deviations(loss, self._losses, least)
        if deviations > self._settings.loss_deviations:
            return f"loss {loss:.4g}, {deviations:.0f} deviations above {usual:.4g}"
        deviations, usual = _measure_deviations(
            _take_logarithm(norm), self._norms, LEAST_NORM_DEVIATION
        )
        if deviations > self._settings.norm_deviations:
            above = f"{deviations:.0f} deviations above {math.exp(usual):.4g}"
            return f"gradient norm {norm:.4g}, {above}"
        return None

    def build_entries(self) -> dict[str, Any]:
        """Return the detector's whole memory as JSON values, exact to the last bit."""
        there = asdict(self._open) if self._open else None
        return {"losses": self._losses, "norms": self._norms, "open": there, "seen": self._seen}

    def restore(self, entries: Mapping[str, Any]) -> Self:
        """Restore the memory that `build_entries` returned, and return this detector."""
        self._losses = list(entries["losses"])
        self._norms = list(entries["norms"])
        self._open = _Open(**entries["open"]) if entries["open"] else None
        self._seen = entries["seen"]
        return self


def _take_logarithm(norm: float) -> float:
    return math.log(max(norm, TINY))


def _measure_deviations(value: float, series: Sequence[float], least: float) -> tuple[float, float]:
    """Return how many robust deviations `value` lies above the median of `series`; and the median.

    The unit is one robust deviation of `series`, or `least` if that is larger.
    """
    usual = statistics.median(series)
    spread = NORMAL * statistics.median(abs(element - usual) for element in series)
    return (value - usual) / max(spread, least), usual
