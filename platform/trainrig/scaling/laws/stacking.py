"""One prediction of the loss from several forms, and how far measured losses lie from it.

Each form has a share in the prediction. The prediction is the weighted median of the forms, because
a single form that goes astray far beyond the runs moves a median less than a mean.

Shapes: M forms, H predicted rows, K draws of a form.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.config import Field, Settings
from trainrig.scaling.laws.law_forms import Array

# The scale of a spread counts as learnt from this many training runs before any is seen.
PRIOR_RUNS = 4
NEAREST = 0.02  # smaller log distances are within the 2% that count as equally large runs
FINEST = 1e-18  # variances of log loss are at least this, the square of the finest digit of a table
ONE_SIGMA = (0.1587, 0.8413)  # quantiles of a normal distribution at one standard deviation


class Spread(Settings):
    """Spread of the measured losses of single runs around predictions."""

    # Standard deviation of a run's log loss around the fitted law.
    noise: float = Field(0.0, ge=0)
    # Errors on larger runs, as a multiple of what the draws and the noise make expected. It is
    # never below 1, because a few runs show small errors by chance.
    scale: float = Field(1.0, ge=1)
    distance: float = Field(0.0, ge=0)  # log distance of these runs from the smaller ones
    runs: int = Field(0, ge=0)  # number of larger training runs that `scale` was learnt from

    def compute_half_width(self, deviation: float, distance: float, level: float) -> float:
        """Compute the half width of an interval of log loss at `level`.

        `deviation` is the standard deviation of the prediction of log loss, without noise.
        `distance` is the log distance of the predicted run from the fitted ones. Errors that the
        draws do not expect are those of the forms, which grow with the distance. Their variance is
        that of a random walk, in proportion to the distance beyond the runs that showed it. The
        distribution is Student's, because the scale was learnt from few runs.
        """
        from scipy.special import stdtrit  # imported here because it is slow to import

        quantile = float(stdtrit(PRIOR_RUNS + self.runs, (1 + level) / 2))
        farther = max(1.0, distance / max(self.distance, NEAREST))
        scale = np.sqrt(1 + (self.scale**2 - 1) * farther)
        return quantile * float(scale * np.hypot(deviation, self.noise))


@dataclass(frozen=True)
class FormPrediction:
    """Predictions of one form for some rows."""

    share: float  # share of the form in the prediction
    predicted: Array  # [H] loss by the fitted form
    drawn: Array  # [K, H] loss by its bootstrap draws; K may be 0


@dataclass(frozen=True)
class Stack:
    """Prediction of several forms together."""

    loss: Array  # [H] nats per token
    deviation: Array  # [H] standard deviation of the log loss: of draws, and between forms
    lowest: Array  # [H] lowest prediction of a form
    highest: Array  # [H] highest prediction of a form


def stack_members(members: Sequence[FormPrediction], others: Sequence[Array] = ()) -> Stack:
    """Combine the predictions of `members`, each with its share.

    `others` are predictions [H] of forms without a share, which count for the lowest and the
    highest alone. A NaN among them has no effect.
    """
    shares = np.array([member.share for member in members])
    shares = shares / shares.sum()
    predicted = np.stack([member.predicted for member in members])
    loss = compute_weighted_median(predicted, shares)
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.log(predicted / loss)
        widths = np.stack([_compute_deviation(member.drawn) for member in members])
        deviation = np.sqrt(shares @ (apart**2 + widths**2))
    every = np.concatenate([predicted, *(other[None] for other in others)])
    return Stack(
        loss=loss,
        deviation=np.where(np.isnan(deviation), np.inf, deviation),
        lowest=np.fmin.reduce(every),
        highest=np.fmax.reduce(every),
    )


def compute_weighted_median(values: Array, shares: Array) -> Array:
    """Compute the median [H] of `values` [M, H] with `shares` [M], interpolated between two forms.

    For two forms it is their weighted mean.
    """
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    weights = shares[order]
    middles = np.cumsum(weights, axis=0) - weights / 2
    half = shares.sum() / 2
    columns = zip(middles.T, ordered.T, strict=True)
    return np.array([np.interp(half, middle, column) for middle, column in columns])


def _compute_deviation(drawn: Array) -> Array:
    """Compute the standard deviation [H] of the log of draws [K, H], from their middle 68%."""
    if not len(drawn):
        return np.zeros(drawn.shape[1:])
    logs = np.log(np.where(np.isnan(drawn), np.inf, drawn))
    low, high = np.quantile(logs, ONE_SIGMA, axis=0)
    return np.asarray((high - low) / 2)


def measure_distance(
    parameters: Array | float, tokens: Array | float, greatest: tuple[float, float, float]
) -> Array:
    """Measure how far runs lie beyond others, in logarithms.

    `greatest` are the greatest parameters, tokens and compute (6ND) of the others. The distance is
    the logarithm of the largest of the three ratios, and 0 for a run that exceeds none of them.
    """
    sizes, lengths = np.broadcast_arrays(
        np.asarray(parameters, dtype=float), np.asarray(tokens, dtype=float)
    )
    quantities = np.stack([sizes, lengths, 6 * sizes * lengths], axis=-1)
    return np.asarray(np.log(np.maximum((quantities / np.array(greatest)).max(axis=-1), 1.0)))


@dataclass(frozen=True)
class Outcome:
    """Prediction of larger runs from smaller ones, with the losses that were measured."""

    stack: Stack
    loss: Array  # [H] measured, nats per token
    noise: float  # standard deviation of a run's log loss around the fit to the smaller runs
    distance: Array  # [H] log distance of each run from the smaller ones


def learn_spread(noise: float, outcomes: Sequence[Outcome], runs: int) -> Spread:
    """Learn the spread of predictions from the `outcomes` on larger runs.

    `noise` is that of the fit to all runs. The outcomes are of `runs` training runs. The scale is
    the root mean square of the errors in units of what was expected, drawn towards 1 as if
    PRIOR_RUNS more had been as expected, and at least 1.
    """
    squares: list[float] = []
    distances: list[float] = []
    for outcome in outcomes:
        variance = np.maximum(outcome.stack.deviation**2 + outcome.noise**2, FINEST)
        square = np.log(outcome.loss / outcome.stack.loss) ** 2 / variance
        known = np.isfinite(variance)
        squares += square[known].tolist()
        distances += outcome.distance[known].tolist()
    if not squares:
        return Spread(noise=noise)
    scale = np.sqrt((PRIOR_RUNS + runs * np.mean(squares)) / (PRIOR_RUNS + runs))
    return Spread(
        noise=noise,
        scale=max(float(scale), 1.0),
        distance=float(np.sqrt(np.mean(np.square(distances)))),
        runs=runs,
    )
