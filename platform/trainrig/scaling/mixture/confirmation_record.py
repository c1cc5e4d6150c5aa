"""Record of a confirmation: measured losses of mixtures beside the losses that were predicted."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy import stats

from trainrig.config import Settings
from trainrig.scaling.laws.law import Interval
from trainrig.scaling.laws.law_formats import format_loss_interval


class ConfirmedMixture(Settings):
    """Mixture that was trained with several seeds, which the fit did not see."""

    name: str  # proposed, natural or uniform
    weights: Mapping[str, float]  # share of each source in the samples
    predicted: float  # expected loss, in nats per token
    # interval of the mean loss of as many new runs as there are seeds, with their noise
    interval: Interval
    losses: tuple[float, ...]  # measured loss of each seed, in nats per token

    @property
    def measured(self) -> float:
        """Mean of the measured losses, in nats per token."""
        return float(np.mean(self.losses))

    @property
    def is_predicted(self) -> bool:
        """True if the measured mean lies in the predicted interval."""
        return self.interval.contains(self.measured)


class LossDifference(Settings):
    """Measured loss of another mixture minus the proposal's, in nats per token."""

    other: str
    gain: float
    interval: Interval

    @property
    def is_shown(self) -> bool:
        """True if the runs show that the proposal has the lower loss."""
        return self.interval.low is not None and self.interval.low > 0

    @property
    def is_refuted(self) -> bool:
        """True if the runs show that the proposal has the higher loss."""
        return self.interval.high is not None and self.interval.high < 0

    def describe(self) -> str:
        """Return the result as a clause about the proposal."""
        found = "not better beyond the noise of seeds than"
        if self.is_shown:
            found = "better than"
        elif self.is_refuted:
            found = "worse than"
        return (
            f"the proposal is {found} {self.other}, whose loss minus the proposal's is "
            f"{self.gain:.4f} {format_loss_interval(self.interval)} nats per token"
        )


class Confirmation(Settings):
    """Measured losses of the proposed mixture and of the mixtures that need no search."""

    mixtures: tuple[ConfirmedMixture, ...]
    differences: tuple[LossDifference, ...]

    @classmethod
    def build(cls, mixtures: Sequence[ConfirmedMixture], level: float) -> "Confirmation":
        """Return the confirmation of `mixtures`, the first of which is the proposal.

        The noise between seeds is pooled over all mixtures. The intervals of differences are
        Student's, for that noise.
        """
        proposed, *others = mixtures
        squares = sum(float(np.var(mixture.losses)) * len(mixture.losses) for mixture in mixtures)
        freedom = sum(len(mixture.losses) - 1 for mixture in mixtures)
        error = np.sqrt(squares / freedom * 2 / len(proposed.losses))
        reach = float(stats.t.ppf((1 + level) / 2, freedom) * error)
        return cls(
            mixtures=tuple(mixtures),
            differences=tuple(
                LossDifference(
                    other=other.name,
                    gain=(gain := other.measured - proposed.measured),
                    interval=Interval(low=gain - reach, high=gain + reach, level=level),
                )
                for other in others
            ),
        )

    def describe(self) -> list[str]:
        """Return the results in lines of text: one for each mixture, then one for each difference.

        Losses have four decimals, as on the page.
        """
        lines = [
            f"{mixture.name}: predicted {mixture.predicted:.4f} "
            f"{format_loss_interval(mixture.interval)}, measured {mixture.measured:.4f} nats per "
            f"token{'' if mixture.is_predicted else ', outside the interval'}"
            for mixture in self.mixtures
        ]
        return lines + [difference.describe() for difference in self.differences]

    def find_warnings(self) -> Iterator[str]:
        """Yield a warning for each mixture that the proposal did not beat, and for a wrong fit."""
        for difference in self.differences:
            if not difference.is_shown:
                yield (
                    f"The confirmation does not show a gain: {difference.describe()}. Train more "
                    f"or longer proxy runs, or keep the {difference.other} weights."
                )
        proposed = self.mixtures[0]
        if not proposed.is_predicted:
            yield (
                f"The proposal's measured loss, {proposed.measured:.4f} nats per token, is not in "
                f"its predicted interval {format_loss_interval(proposed.interval)}: the fit is too "
                "sure. Train more proxy runs."
            )
