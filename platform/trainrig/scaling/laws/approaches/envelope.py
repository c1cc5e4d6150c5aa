"""Approach 1 of Hoffmann et al. (arXiv:2203.15556, section 3.1): the envelope of training curves.

At each compute, N* is the size of the run with the least loss. Straight lines through log N* and
log D* over log C give the exponents. Curves are interpolated between their points, never
extrapolated. Where the smallest or the largest model wins, an even smaller or larger one might be
better, so those computes are excluded and listed. N* is always one of the trained sizes, so a finer
ladder of sizes gives a finer estimate.

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

LEAST_BEST = 3  # sizes that are best at some compute, not counting the smallest and the largest


class Envelope(Settings):
    """Settings of approach 1, the envelope of training curves."""

    # Number of computes to compare at, evenly spaced in log; Hoffmann et al. take 1,500.
    points: int = Field(500, ge=10)


@dataclass(frozen=True)
class EnvelopeFit:
    """Fits of N*(C) and D*(C), the envelope itself, and the computes that were excluded."""

    parameters: PowerLaw
    tokens: PowerLaw
    flops: Floats  # [G] compute, 6ND
    best: Floats  # [G] N of the run with the least loss
    loss: Floats  # [G] that loss, nats per token
    refused: tuple[LeftOut, ...]


@dataclass(frozen=True)
class Curves:
    """Loss [T, G] of each trial at each compute, inf where the trial was not measured."""

    sizes: Floats  # [T] N
    flops: Floats  # [G]
    loss: Floats  # [T, G]
    rows: tuple[Places, ...]  # row indices of each curve's points in the table


def interpolate_curves(runs: RunsTable, settings: Envelope | None = None) -> Curves:
    """Interpolate the log loss of each trial linearly in log C.

    Trials with a single point are joined to one curve per size. A point with a higher loss than an
    earlier one is ignored, because the envelope needs the best loss so far. Raises DataError if no
    curve has two points.
    """
    flops = runs.flops_6nd
    drawn = tuple(rows for rows in _iterate_curve_rows(runs) if np.ptp(flops[rows]) > 0)
    if not drawn:
        raise DataError(
            "the envelope of training curves needs losses along the runs: two or more points of "
            f"each run, or several runs of a size. None of the {len(runs)} runs has a second point"
        )
    along = flops[np.concatenate(drawn)]
    grid = np.geomspace(along.min(), along.max(), (settings or Envelope()).points)
    sizes = np.array([np.median(runs.parameters[rows]) for rows in drawn])
    return Curves(
        sizes, grid, np.array([_interpolate_curve(runs, rows, grid) for rows in drawn]), drawn
    )


def _interpolate_curve(runs: RunsTable, rows: Places, flops: Floats) -> Floats:
    """Return the loss [G] at `flops` from the points of `rows`, and inf outside their range."""
    ordered = rows[np.lexsort((runs.loss[rows], runs.flops_6nd[rows]))]
    x, first = np.unique(np.log(runs.flops_6nd[ordered]), return_index=True)
    y = np.minimum.accumulate(np.log(runs.loss[ordered][first]))
    return np.asarray(np.exp(np.interp(np.log(flops), x, y, left=np.inf, right=np.inf)))


def _iterate_curve_rows(runs: RunsTable) -> Iterator[Places]:
    """Yield the rows of each curve: of each trial, then of single-point trials of each size."""
    _, trial, counts = np.unique(runs.trial, return_inverse=True, return_counts=True)
    single = counts[trial] == 1
    for number in np.unique(trial[~single]):
        yield np.flatnonzero(trial == number)
    size = np.searchsorted(find_levels(runs.parameters), runs.parameters, side="right")
    for number in np.unique(size[single]):
        yield np.flatnonzero(single & (size == number))


def fit_envelope(runs: RunsTable, settings: Envelope | None = None) -> EnvelopeFit:
    """Fit approach 1 to all points of `runs`. Raises DataError as `fit_envelope_to_curves` does."""
    return fit_envelope_to_curves(interpolate_curves(runs, settings))


def refit_envelope(drawn: Curves, runs: RunsTable, counts: NDArray[np.int64]) -> Floats:
    """Return ln coefficient and exponent of N*(C), [K, 2], for each draw's counts [K, R].

    Only whether a draw took a row matters, not how often. Curves that lost points are interpolated
    again. A draw that cannot be fitted is NaN.
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
    """Fit the envelope of `drawn`. Raises DataError if too few sizes are best anywhere."""
    sizes = drawn.sizes
    loss = drawn.loss
    ladder = np.unique(sizes)
    least = loss.min(axis=0)
    winner = sizes[np.argmin(loss, axis=0)]
    inside = np.isfinite(least) & _select_between_edges(drawn.flops, winner, least, ladder)
    if (best_somewhere := len(np.unique(winner[inside]))) < LEAST_BEST:
        raise DataError(
            f"the envelope: of {len(ladder)} sizes, {best_somewhere} between the smallest and the "
            f"largest are best at some compute, but a line needs {LEAST_BEST}: train more sizes, "
            "or the smaller ones for longer"
        )
    flops = drawn.flops[inside]
    best = winner[inside]
    return EnvelopeFit(
        parameters=fit_power(flops, best),
        tokens=fit_power(flops, flops / (6 * best)),
        flops=flops,
        best=best,
        loss=least[inside],
        refused=_list_edges(drawn.flops, winner, np.isfinite(least), ladder),
    )


def _select_between_edges(flops: Floats, winner: Floats, least: Floats, ladder: Floats) -> Mask:
    """Return a mask [G] of the computes where neither edge size wins.

    It covers the computes above the last one that the smallest size wins and below the first one
    that the largest wins. In between, noise can shift the winner to either side. Outside, it could
    shift the winner to one side only, which would flatten the fitted line.
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
