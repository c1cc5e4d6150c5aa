"""Approach 1 of Hoffmann et al. (arXiv:2203.15556, section 3.1): the envelope of training curves.

At each compute, the run with the least loss names N*; lines through log N* and log D* over log C
give the exponents. Runs are read between their points, never beyond. Where the smallest or the
largest model wins, a smaller or a larger one might have: those computes are left out, and said.
N* can only be one of the sizes trained: the finer the ladder, the less the envelope is bound to it.

Shapes: T trials, G computes.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.scaling.laws.approaches.power import PowerLaw, fit_power
from trainrig.scaling.laws.law import LeftOut
from trainrig.scaling.laws.regression.identifiability import find_levels
from trainrig.scaling.laws.runs_table import Floats, RunsTable

Mask = NDArray[np.bool_]
Places = NDArray[np.int64]

LEAST_BEST = 3  # sizes that are best somewhere, beside the smallest and the largest


class Envelope(Settings):
    """Where the curves are compared."""

    points: int = Field(500, ge=10)  # computes, evenly in log; Hoffmann et al. take 1,500


@dataclass(frozen=True)
class EnvelopeFit:
    """N*(C) and D*(C), the envelope [G], and the computes that were left out."""

    parameters: PowerLaw
    tokens: PowerLaw
    flops: Floats  # [G], by 6ND
    best: Floats  # [G] N of the run with the least loss
    loss: Floats  # [G] that loss, nats per token
    refused: tuple[LeftOut, ...]


@dataclass(frozen=True)
class Curves:
    """The loss of each trial at each compute, [T, G]; inf where the trial was not measured."""

    sizes: Floats  # [T] N
    flops: Floats  # [G]
    loss: Floats  # [T, G]
    rows: tuple[Places, ...]  # of each curve: where its points are in the table


def interpolate_curves(runs: RunsTable, settings: Envelope | None = None) -> Curves:
    """Each trial's log loss, drawn straight from point to point over log C.

    Trials of a single point are drawn as one curve with those of their size. A point worse than
    one before it is passed over: the envelope wants the best so far. Raises DataError where no
    curve has two points.
    """
    flops = runs.flops_6nd
    drawn = tuple(rows for rows in _iterate_curve_rows(runs) if np.ptp(flops[rows]) > 0)
    if not drawn:
        raise DataError(
            "the envelope of training curves needs losses along the runs, at two places or more of "
            f"each, or several runs of a size; none of the {len(runs)} runs has another point"
        )
    along = flops[np.concatenate(drawn)]
    grid = np.geomspace(along.min(), along.max(), (settings or Envelope()).points)
    sizes = np.array([np.median(runs.parameters[rows]) for rows in drawn])
    return Curves(
        sizes, grid, np.array([_interpolate_curve(runs, rows, grid) for rows in drawn]), drawn
    )


def _interpolate_curve(runs: RunsTable, rows: Places, flops: Floats) -> Floats:
    """[G] the loss at `flops`, between the points of `rows`; inf beyond them."""
    ordered = rows[np.lexsort((runs.loss[rows], runs.flops_6nd[rows]))]
    x, first = np.unique(np.log(runs.flops_6nd[ordered]), return_index=True)
    y = np.minimum.accumulate(np.log(runs.loss[ordered][first]))
    return np.asarray(np.exp(np.interp(np.log(flops), x, y, left=np.inf, right=np.inf)))


def _iterate_curve_rows(runs: RunsTable) -> Iterator[Places]:
    """The rows of each curve: a trial's, and of the other trials those of a size."""
    _, trial, counts = np.unique(runs.trial, return_inverse=True, return_counts=True)
    single = counts[trial] == 1
    for number in np.unique(trial[~single]):
        yield np.flatnonzero(trial == number)
    size = np.searchsorted(find_levels(runs.parameters), runs.parameters, side="right")
    for number in np.unique(size[single]):
        yield np.flatnonzero(single & (size == number))


def fit_envelope(runs: RunsTable, settings: Envelope | None = None) -> EnvelopeFit:
    """Approach 1 over all points of `runs`. Raises DataError where nothing is between sizes."""
    return fit_envelope_to_curves(interpolate_curves(runs, settings))


def refit_envelope(drawn: Curves, runs: RunsTable, counts: NDArray[np.int64]) -> Floats:
    """ln coefficient and exponent of N*(C) by each draw's counts [K, R]: [K, 2].

    How often a draw takes a row is nothing to an envelope; only whether it does. Curves that lost
    points are drawn again without them; a draw without a line is NaN.
    """
    found = np.full((len(counts), 2), np.nan)
    for line, taken in zip(found, counts > 0, strict=True):
        kept: list[int] = []
        losses: list[Floats] = []
        for curve, rows in enumerate(drawn.rows):
            there = rows[taken[rows]]
            if len(there) < 2 or np.ptp(runs.flops_6nd[there]) == 0:
                continue
            whole = len(there) == len(rows)
            losses.append(
                drawn.loss[curve] if whole else _interpolate_curve(runs, there, drawn.flops)
            )
            kept.append(curve)
        if kept:
            left = Curves(drawn.sizes[kept], drawn.flops, np.array(losses), ())
            with contextlib.suppress(DataError):
                law = fit_envelope_to_curves(left).parameters
                line[:] = np.log(law.coefficient), law.exponent
    return found


def fit_envelope_to_curves(drawn: Curves) -> EnvelopeFit:
    """The envelope of `drawn`. Raises DataError where too few sizes are ever best."""
    sizes, loss = drawn.sizes, drawn.loss
    ladder = np.unique(sizes)
    least = loss.min(axis=0)
    winner = sizes[np.argmin(loss, axis=0)]
    inside = np.isfinite(least) & _select_between_edges(drawn.flops, winner, least, ladder)
    if (best_somewhere := len(np.unique(winner[inside]))) < LEAST_BEST:
        raise DataError(
            f"the envelope: of {len(ladder)} sizes, {best_somewhere} between the smallest and the "
            f"largest are ever best, and a line needs {LEAST_BEST}: train more sizes, or the "
            "smaller ones for longer"
        )
    flops, best = drawn.flops[inside], winner[inside]
    return EnvelopeFit(
        parameters=fit_power(flops, best),
        tokens=fit_power(flops, flops / (6 * best)),
        flops=flops,
        best=best,
        loss=least[inside],
        refused=_list_edges(drawn.flops, winner, np.isfinite(least), ladder),
    )


def _select_between_edges(flops: Floats, winner: Floats, least: Floats, ladder: Floats) -> Mask:
    """[G] above the last compute that the smallest wins and below the first the largest wins.

    Between these, noise gives a size on either side of the best its turn; beyond them it can give
    it to one side only, which would flatten the line.
    """
    known = np.isfinite(least)
    smallest = flops[known & (winner == ladder[0])].max(initial=0)
    largest = flops[known & (winner == ladder[-1])].min(initial=np.inf)
    return np.asarray((flops > smallest) & (flops < largest))


def _list_edges(
    flops: Floats, winner: Floats, known: NDArray[np.bool_], ladder: Floats
) -> tuple[LeftOut, ...]:
    edges = (("smallest", "smaller", ladder[0]), ("largest", "larger", ladder[-1]))
    left_out = []
    for which, wanted, size in edges:
        at = flops[known & (winner == size)]
        if len(at):
            left_out.append(
                LeftOut(
                    name=f"{at.min():.3g} to {at.max():.3g} FLOPs",
                    reason=f"the {which} size, {size:.3g}, is best: a {wanted} one may be better",
                )
            )
    return tuple(left_out)
