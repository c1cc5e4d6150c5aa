"""Warnings that a user must read before training on a proposed mixture."""

from collections.abc import Iterator

from trainrig.scaling.laws.figure_format import format_loss
from trainrig.scaling.mixture.record import MixtureRecord, RegressionScore, format_loss_interval

ORDERED = 0.9  # rank correlation below which the best of many mixtures may be best by chance
EXPLAINED = 0.5  # share of the baseline's error above which losses are not usefully predicted
SHARED = 0.7  # share of the error above which a shift common to all runs explains it


def choose_score(record: MixtureRecord) -> RegressionScore:
    """Return the score of the Gaussian processes, on held-out runs if there are any."""
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
