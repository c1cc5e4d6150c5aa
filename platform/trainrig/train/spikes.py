"""Spikes of the loss: which steps no update should be made of, and which data a run goes past.

A step is an *outlier* if its loss or its gradient norm lies far above those of the updates before
it, in robust deviations (median and median absolute deviation: what is judged does not shift the
scale much that it is judged by). No update is made of an outlier. Several outliers close together
are a *spike*: once it has passed, or has lasted too long, the run goes back to a checkpoint from
before it and past its data (PaLM, arXiv:2204.02311, section 5.1), as the updates just before a
spike are those that may have caused it.

The detector is a pure function of what it was shown: losses and norms that all ranks have alike, in
the order of data steps. So every rank comes to the same verdict, and a run that goes over the same
steps again, from whichever checkpoint, to the same range.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from trainrig.config import Field, Settings

# Of a normal distribution, the standard deviation over the median absolute one.
NORMAL = 1.4826
# A deviation is taken for this much at least, lest a series that hardly moves make outliers of
# everything: as a share of the median loss, and of the logarithm of the norm.
LEAST_LOSS_DEVIATION = 0.01
# Also of the loss, in nats. What a model knows by heart has losses near 0 that differ by factors:
# on sums of two digits, .0098 is 15 deviations above .0007, and nothing is wrong.
LEAST_LOSS_NATS = 0.005
LEAST_NORM_DEVIATION = 0.1
TINY = 1e-30  # in the place of 0, which has no logarithm
WIDER = 4  # times the margin for each time that the run went back to the same place


class Spikes(Settings):
    """When a step is an outlier, when outliers are a spike, and what is done about it."""

    # Updates whose losses and norms say what is usual; before there are as many, nothing is judged.
    window: int = Field(default=128, ge=16)
    # Deviations above the median loss from which a step is an outlier.
    loss_deviations: float = Field(default=10.0, gt=0)
    # Deviations above the median logarithm of the gradient norm from which a step is an outlier.
    norm_deviations: float = Field(default=20.0, gt=0)
    # Outliers close together that are a spike; fewer are skipped, and no more comes of them.
    confirm: int = Field(default=3, ge=1)
    # Steps of data to skip on either side of a spike; as many in a row without an outlier end it.
    # At the same place again, four times as many before it.
    margin: int = Field(default=2, ge=1)
    # Steps after which a spike that has not ended is taken for whole.
    longest: int = Field(default=64, ge=1)
    # Times that a run may go back to one place before it ends.
    rollbacks: int = Field(default=3, ge=0)
    # What the learning rate is multiplied by after data that was skipped; 1: nothing changes.
    rate_cut: float = Field(default=1.0, gt=0, le=1)
    # Steps of data for which it is.
    rate_cut_steps: int = Field(default=100, ge=1)


@dataclass(frozen=True, order=True)
class DataRange:
    """Data steps from `begin` up to, without, `end`."""

    begin: int
    end: int

    def __contains__(self, data_step: int) -> bool:
        return self.begin <= data_step < self.end

    def __str__(self) -> str:
        return f"{self.begin} to {self.end - 1}"


@dataclass(frozen=True)
class Spike:
    """A spike that has passed, or has lasted as long as it may."""

    first: int  # data step of its first outlier
    last: int  # of its last
    outliers: int
    skip: DataRange  # to be skipped once the run has gone back
    again: int  # times that the run went back to this place before


@dataclass
class _Open:
    """Outliers that may yet become a spike."""

    first: int
    last: int
    outliers: int


class SpikeDetector:
    """Is shown each step's loss and gradient norm, and says what to make of it.

    `settings` None: nothing is ever an outlier. `new_levels`: data steps from which the loss may be
    of another level, as where a mixture changes: what was usual before says nothing of them.
    `skipped`: ranges that the run has gone back for before.
    """

    def __init__(
        self,
        settings: Spikes | None,
        new_levels: Sequence[int] = (),
        skipped: Iterable[DataRange] = (),
    ) -> None:
        self._settings, self._new_levels = settings, tuple(sorted(new_levels))
        self.skipped = tuple(sorted(skipped))
        self._losses: list[float] = []  # of the newest updates, the oldest first
        self._norms: list[float] = []  # logarithms
        self._open: _Open | None = None
        self._seen = 0  # data steps that were shown or passed over, from 0

    def observe(self, data_step: int, loss: float, norm: float) -> str | None:
        """Why no update should be made of `data_step`, in words; None if one should.

        To be called once for each step that is computed, in order.
        """
        if self._settings is None:
            return None
        if any(self._seen < each <= data_step for each in self._new_levels):
            self._losses, self._norms, self._open = [], [], None
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
        """The spike that has just become whole, if one has; to be asked between two steps."""
        there, settings = self._open, self._settings
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
        again = sum(each.begin <= there.first and each.end > oldest for each in self.skipped)
        begin = there.first - settings.margin * WIDER**again
        last = there.last if passed else self._seen
        skip = DataRange(max(0, begin), last + 1 + settings.margin)
        return Spike(there.first, there.last, there.outliers, skip, again)

    def gives_up(self, spike: Spike) -> bool:
        """Whether the run has gone back to the place of `spike` as often as it may."""
        return self._settings is not None and spike.again >= self._settings.rollbacks

    def compute_rate_share(self, data_step: int) -> float:
        """What the learning rate of `data_step` is multiplied by."""
        if self._settings is None:
            return 1.0
        steps = self._settings.rate_cut_steps
        cuts = sum(data_step in DataRange(each.end, each.end + steps) for each in self.skipped)
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
        """All that it remembers, as JSON has it, to the last bit."""
        there = asdict(self._open) if self._open else None
        return {"losses": self._losses, "norms": self._norms, "open": there, "seen": self._seen}

    def restore(self, entries: Mapping[str, Any]) -> Self:
        """Remember what another's `entries` were."""
        self._losses, self._norms = list(entries["losses"]), list(entries["norms"])
        self._open = _Open(**entries["open"]) if entries["open"] else None
        self._seen = entries["seen"]
        return self


def _take_logarithm(norm: float) -> float:
    return math.log(max(norm, TINY))


def _measure_deviations(value: float, series: Sequence[float], least: float) -> tuple[float, float]:
    """How many robust deviations, each taken for `least` at least, `value` lies above the median of
    `series`; and the median."""
    usual = statistics.median(series)
    spread = NORMAL * statistics.median(abs(each - usual) for each in series)
    return (value - usual) / max(spread, least), usual
