"""References for the curves of laws: second differences, and fits with a given base law."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from trainrig.scaling.laws.law_forms import Array, DataConstrained, Parametric
from trainrig.scaling.laws.runs_table import RunsTable, count_unique_tokens
from trainrig.scaling.regression.data_constrained import (
    LARGEST,
    REPEATS,
    SEARCH,
    DataConstrainedCurve,
    check_repeats,
)
from trainrig.scaling.regression.minimise import CurveValue, Huber
from trainrig.scaling.regression.regression import Fit, Regression, check_numbers

BASE = 5  # number of coordinates of the base law, which come first


def difference_twice(value: Callable[[Array], Array], theta: Array, coefficients: Array) -> Array:
    """Return the weighted second differences [K, P, P] of `value`, a function of theta [K, P]."""
    count = theta.shape[1]
    wide = 1e-3  # wider than for slopes, because second differences lose twice as many digits
    shifts = wide * np.eye(count)
    bent = np.empty((len(theta), count, count))

    def weigh(shift: Array) -> Array:
        return np.asarray((coefficients * value(theta + shift)).sum(1))

    for p, q in itertools.product(range(count), repeat=2):
        a, b = shifts[p], shifts[q]
        corners = weigh(a + b) - weigh(a - b) - weigh(b - a) + weigh(-a - b)
        bent[:, p, q] = corners / (4 * wide**2)
    return bent


class FixedBaseCurve:
    """Data-constrained curve of (ln r_d, ln r_n) alone, for a given base law."""

    def __init__(self, logs: tuple[Array, Array, Array], base: Parametric) -> None:
        self._curve = DataConstrainedCurve(logs, (0.0, 0.0), LARGEST)
        self._base = np.array(
            [np.log(base.A), np.log(base.B), np.log(base.E), base.alpha, base.beta]
        )

    def __call__(self, theta: Array) -> CurveValue:
        fixed = np.broadcast_to(self._base, (len(theta), BASE))
        point = self._curve(np.concatenate([fixed, theta], axis=1))
        slope = point.slope[..., BASE:]
        return CurveValue(point.value, slope, lambda c: point.bend(c)[:, BASE:, BASE:])


def fit_repeats(
    runs: RunsTable, base: Parametric, repeats: Sequence[float] = REPEATS
) -> Fit[DataConstrained]:
    """Fit r_d and r_n of the data-constrained law with the base law `base`."""
    check_numbers(runs)
    check = partial(check_repeats, constants=2)
    check(runs)
    unique = np.minimum(count_unique_tokens(runs), runs.tokens)

    def forms(theta: Array) -> DataConstrained:
        r_d, r_n = np.moveaxis(np.exp(np.minimum(theta, np.log(LARGEST))), -1, 0)
        return DataConstrained.model_construct(base=base, r_d=r_d, r_n=r_n)

    return Regression(
        runs=runs,
        curve=FixedBaseCurve((np.log(runs.parameters), np.log(runs.tokens), np.log(unique)), base),
        starts=np.log(list(itertools.product(repeats, repeat=2))),
        loss=Huber(),
        forms=forms,
        search=SEARCH,
        check=check,
        largest={"r_d": LARGEST, "r_n": LARGEST},
    ).fit()
