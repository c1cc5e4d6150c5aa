"""Refits of a quantity to bootstrap draws, one draw after the other."""

from collections.abc import Callable, Sequence

import numpy as np

from trainrig.errors import DataError
from trainrig.scaling.laws.law_forms import Array
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.bootstrap import Counts, Refit


def make_refit(
    fit: Callable[[RunsTable], Sequence[float] | Array], runs: RunsTable, quantities: int
) -> Refit:
    """Return a Refit that calls `fit` on each draw's table of runs.

    A draw that `fit` rejects with DataError is NaN.
    """

    def refit(counts: Counts) -> Array:
        values = np.full((len(counts), quantities), np.nan)
        for row, count in zip(values, counts, strict=True):
            try:
                row[:] = fit(runs.select(np.repeat(np.arange(len(runs)), count)))
            except DataError:
                continue
        return values

    return refit
