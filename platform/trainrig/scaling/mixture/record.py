"""Schema of `mixture.json`, the record of a proposed mixture."""

from collections.abc import Mapping

from trainrig.config import Field, Settings
from trainrig.scaling.laws.law import Interval
from trainrig.scaling.mixture.proposal import MixtureSearch


class RegressionScore(Settings):
    """Errors of one regression on runs that it was not fitted to."""

    regression: str
    judged_on: str
    rows: int
    rank_correlation: float  # Spearman's rank correlation of predicted and measured losses
    error: float  # root mean square error, in nats per token
    # the same error when the mean loss of the fitted runs is predicted for every run
    baseline_error: float | None = None
    shift: float | None = None  # mean of predicted minus measured losses, in nats per token


class SourceShare(Settings):
    """Share of one source in the proposed mixture."""

    source: str
    weight: float  # share of the samples, as written into the run file
    interval: Interval
    average: float  # mean share of the source in the fitted runs


class MixtureRecord(Settings):
    """Contents of `mixture.json`."""

    format: int = 1
    targets: tuple[str, ...]
    runs: int
    runs_left_out: int  # number of runs that only one of the two files has
    weights: tuple[SourceShare, ...]
    loss: float  # expected loss of the proposal, the mean over the targets, in nats per token
    loss_interval: Interval
    average_loss: float  # expected loss of the average mixture of the fitted runs
    gain: float  # nats per token below the average mixture
    gain_interval: Interval
    lowest_measured: float  # lowest loss of a fitted run, which includes noise and chance
    law_loss: float  # loss of the proposal that the mixing laws expect
    scores: tuple[RegressionScore, ...]
    # rank correlation on the held-out runs, for each target
    by_target: Mapping[str, float] = Field({})
    search: MixtureSearch
    made_by: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def format_loss_interval(interval: Interval) -> str:
    """Return an interval of losses as text with four decimals, such as `[4.5831, 4.6932]`."""
    return f"[{interval.low:.4f}, {interval.high:.4f}]"
