"""What `mixture.json` holds."""

from collections.abc import Mapping

from trainrig.config import Field, Settings
from trainrig.scaling.laws.law import Interval
from trainrig.scaling.mixture.proposal import MixtureSearch


class RegressionScore(Settings):
    """How well one regression predicts runs that it was not fitted to."""

    regression: str
    judged_on: str
    rows: int
    rank_correlation: float  # Spearman's
    error: float  # root mean square, nats per token
    baseline_error: float | None = None  # the same of saying the mean of the runs fitted for each
    shift: float | None = None  # mean of predicted less measured, nats per token


class SourceShare(Settings):
    """One source of the proposal."""

    source: str
    weight: float  # share of the samples, as written into the run file
    interval: Interval
    average: float  # its share over the runs fitted


class MixtureRecord(Settings):
    """What `mixture.json` holds."""

    format: int = 1
    targets: tuple[str, ...]
    runs: int
    runs_left_out: int  # lines that only one of the two files has
    weights: tuple[SourceShare, ...]
    loss: float  # expected, mean over the targets, nats per token
    loss_interval: Interval
    average_loss: float  # expected of the average mixture of the runs
    gain: float  # nats per token, against the average mixture
    gain_interval: Interval
    lowest_measured: float  # of the runs fitted, its noise and luck included
    law_loss: float  # what mixing laws expect of the proposal
    scores: tuple[RegressionScore, ...]
    by_target: Mapping[str, float] = Field({})  # rank correlation on the held-out runs
    search: MixtureSearch
    made_by: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def format_loss_interval(interval: Interval) -> str:
    """`[4.5831, 4.6932]`: to as many digits as the losses that it is of."""
    return f"[{interval.low:.4f}, {interval.high:.4f}]"
