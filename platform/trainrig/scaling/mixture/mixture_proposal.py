"""Proposal of a mixture for the large model: the search, the record `mixture.json`, warnings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from trainrig.config import Field, Settings
from trainrig.scaling.laws.law import Interval
from trainrig.scaling.laws.law_formats import format_loss, format_loss_interval
from trainrig.scaling.mixture.confirmation_record import Confirmation
from trainrig.scaling.mixture.mixture_draws import draw_mixtures, limit_shares
from trainrig.scaling.mixture.mixture_regression import MeanRegression
from trainrig.scaling.mixture.mixture_runs import Array
from trainrig.scaling.mixture.mixture_settings import Method, MixtureSearch

CHUNK = 10_000  # mixtures predicted at a time, which takes 40 MB against 512 runs
LEVEL = 0.95  # probability that an interval covers
DRAWS_OF_TWO = 4000  # number of functions drawn at two mixtures, where draws are cheap


@dataclass(frozen=True, eq=False)
class Proposal:
    """Proposed mixture, and the average mixture of the runs for comparison.

    Losses are in nats per token, the mean over the targets. Intervals hold the share LEVEL of the
    draws.
    """

    shares: Array  # [S]
    low: Array  # [S]
    high: Array  # [S]
    loss: float
    loss_interval: tuple[float, float]
    average_shares: Array  # [S]
    average_loss: float
    gain: float  # nats per token below the loss of the average mixture
    gain_interval: tuple[float, float]


def propose(
    regression: MeanRegression, runs: Array, search: MixtureSearch, limits: Array
) -> Proposal:
    """Propose the average of the best mixtures, with intervals.

    `search.candidates` mixtures are drawn around the average of `runs` [R, S] and kept within
    `limits` [S].
    """
    generator = np.random.default_rng(search.seed)
    average = runs.mean(axis=0)
    mixtures = limit_shares(draw_mixtures(average, search.candidates, generator), limits)
    expected = np.concatenate(
        [
            regression.expect(mixtures[begin : begin + CHUNK])
            for begin in range(0, len(mixtures), CHUNK)
        ]
    )
    shares = mixtures[np.argpartition(expected, search.best)[: search.best]].mean(axis=0)
    finalists = _select_finalists(regression, mixtures, expected, search.finalists)
    moved = _average_best_by_draw(regression, finalists, search, generator)
    low, high = _compute_interval(moved)
    # The proposal averages more mixtures than there are finalists, so it may lie beyond all of them
    # where a source should get next to nothing.
    low, high = np.minimum(low, shares), np.maximum(high, shares)
    both = np.stack([shares, average])
    losses = regression.expect(both)
    under_draws = regression.draw(both, DRAWS_OF_TWO, generator)
    gains = under_draws[:, 1] - under_draws[:, 0]
    return Proposal(
        shares=shares,
        low=low,
        high=high,
        loss=float(losses[0]),
        loss_interval=_compute_ends(under_draws[:, 0]),
        average_shares=average,
        average_loss=float(losses[1]),
        gain=float(losses[1] - losses[0]),
        gain_interval=_compute_ends(gains),
    )


def _compute_interval(values: Array) -> tuple[Array, Array]:
    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2), axis=0)
    return low, high


def _compute_ends(values: Array) -> tuple[float, float]:
    low, high = _compute_interval(values)
    return float(low), float(high)


def _select_finalists(
    regression: MeanRegression, mixtures: Array, expected: Array, count: int
) -> Array:
    """Return the `count` mixtures that are lowest at the low end of their error bars.

    They are chosen from the 4 x `count` mixtures of lowest expected loss, because error bars are
    costly.
    """
    few = np.argsort(expected, kind="stable")[: 4 * count]
    losses, deviations = regression.predict(mixtures[few])
    return np.asarray(mixtures[few[np.argsort(losses - 2 * deviations, kind="stable")[:count]]])


def _average_best_by_draw(
    regression: MeanRegression,
    finalists: Array,
    search: MixtureSearch,
    generator: np.random.Generator,
) -> Array:
    """Return the average of the best finalists [P, S] under each drawn function."""
    functions = regression.draw(finalists, search.draws, generator)
    best = min(search.best, len(finalists) // 10)
    chosen = np.argpartition(functions, best, axis=1)[:, :best]
    return np.asarray(finalists[chosen].mean(axis=1))


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
    method: Method = "RegMix"  # regression that proposed the mixture
    targets: tuple[str, ...]
    # weight of each target in the loss; empty: all weigh the same
    target_weights: Mapping[str, float] = Field({})
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
    process_loss: float  # loss of the proposal that the Gaussian processes expect
    noise: float  # standard deviation of one run's loss around the regression, in nats per token
    scores: tuple[RegressionScore, ...]
    # rank correlation on the held-out runs, for each target
    by_target: Mapping[str, float] = Field({})
    search: MixtureSearch
    made_by: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    # losses measured on the proposed mixture; None: it was not trained
    confirmation: Confirmation | None = None


ORDERED = 0.9  # rank correlation below which the best of many mixtures may be best by chance
EXPLAINED = 0.5  # share of the baseline's error above which losses are not usefully predicted
# Runs for each source below which intervals are too narrow. With 3 sources and simulated losses,
# 95% intervals held the loss of a new mixture in 53% of cases by 8 runs, and in 93% by 24.
ENOUGH_RUNS = 8
SHARED = 0.7  # share of the error above which a shift common to all runs explains it


def choose_score(record: MixtureRecord) -> RegressionScore:
    """Return the score of the regression that proposed, on held-out runs if there are any."""
    held = (score for score in record.scores if "held-out" in score.judged_on)
    return next(held, record.scores[0])


def find_warnings(record: MixtureRecord) -> Iterator[str]:
    """Yield the warnings, the most serious first."""
    score = choose_score(record)
    yield from _find_loss_warnings(score)
    low = record.gain_interval.low
    if low is None or low <= 0:
        yield (
            f"The gain's interval {format_loss_interval(record.gain_interval)} contains 0: the "
            "runs do not show that this mixture is better than their average. Train more runs."
        )
    if not score.rank_correlation >= ORDERED:
        yield (
            f"The rank correlation of new mixtures is only {score.rank_correlation:.4f} on "
            f"{score.judged_on}, so the best of many may be best by chance. Train more runs."
        )
    enough = ENOUGH_RUNS * len(record.weights)
    if record.runs < enough:
        yield (
            f"Only {record.runs} runs of {len(record.weights)} sources: below about {enough} runs, "
            "intervals are too narrow. Train more runs."
        )
    if not record.loss_interval.contains(record.loss):
        yield (
            f"The interval of the expected loss, {format_loss_interval(record.loss_interval)}, "
            "does not contain it, so the regression is not reliable. Train more runs."
        )
    if record.runs_left_out:
        yield (
            f"{record.runs_left_out} runs are left out: they are in only one of the files, or a "
            "loss is not a number."
        )


def _find_loss_warnings(score: RegressionScore) -> Iterator[str]:
    error = score.error
    baseline = score.baseline_error
    if baseline is None or error <= EXPLAINED * baseline:
        return
    than = "no better than" if error >= baseline else "hardly better than"
    finding = (
        f"Losses are not predicted: on {score.judged_on} the error is {format_loss(error)} nats "
        f"per token, {than} predicting the mean of the fitted runs ({format_loss(baseline)})."
    )
    shift = score.shift or 0.0
    if abs(shift) > SHARED * error:
        side = "above" if shift > 0 else "below"
        yield (
            f"{finding} All predictions share a shift of {format_loss(abs(shift))} {side} what was "
            "measured: check whether the runs differ in model size, tokens or text. The proposal "
            "depends only on the order of losses. Hold out runs like those fitted."
        )
        return
    yield f"{finding} Do not train on this mixture: check the columns, or train more runs."
