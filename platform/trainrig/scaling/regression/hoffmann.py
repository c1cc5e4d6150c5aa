"""Approaches 1 and 2 of Hoffmann et al. (arXiv:2203.15556): envelope and IsoFLOP parabolas.

Approach 1 (section 3.1): at each compute, N* is the size of the run with the least loss. Straight
lines through log N* and log D* over log C give the exponents. Curves are interpolated between their
points, never extrapolated. Where the smallest or the largest model wins, an even smaller or larger
one might be better, so those computes are excluded and listed. N* is always one of the trained
sizes, so a finer ladder of sizes gives a finer estimate.

Approach 2 (section 3.2): at one budget, the loss over log N is a bowl with its lowest point at N*.
A line through log N* over log C gives N* ~ C^a. The parabola is symmetric but the bowl is not
(unless alpha = beta), so sizes far from N* and grids that are not centred on it bias the estimate.
The settings `within` and `nearest` select the sizes near N*. A budget whose lowest point is not
between its sizes is excluded.

Shapes: T trials, G computes, B budgets, R rows, K draws.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.scaling.laws.law import LeftOut
from trainrig.scaling.laws.runs_table import Floats, RunsTable
from trainrig.scaling.regression.regression import find_levels


@dataclass(frozen=True)
class PowerLaw:
    """Power law y = coefficient * x^exponent."""

    coefficient: float
    exponent: float

    def __call__(self, x: ArrayLike) -> Floats:
        """Return y at `x`."""
        values = np.asarray(x, dtype=np.float64)
        # In logarithms, because both the coefficient and x^exponent may overflow with x in FLOPs.
        return np.asarray(np.exp(np.log(self.coefficient) + self.exponent * np.log(values)))

    @property
    def scale(self) -> float:
        """The x at which y is 1: x_c of Kaplan's (x_c/x)^alpha, where alpha = -exponent."""
        return float(np.exp(-np.log(self.coefficient) / self.exponent))


def fit_power(x: Floats, y: Floats) -> PowerLaw:
    """Fit log y over log x by least squares. Raises DataError if all x are equal."""
    log_x = np.log(x)
    log_y = np.log(y)
    centred = log_x - log_x.mean()
    spread = float(centred @ centred)
    if spread < 1e-12:
        raise DataError(f"a power law needs two different values, found {len(x)} of {x[0]:.3g}")
    exponent = float(centred @ log_y) / spread
    return PowerLaw(float(np.exp(log_y.mean() - exponent * log_x.mean())), exponent)


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


LEAST_SIZES = 4  # a parabola fits any three
LEAST_BUDGETS = 2  # needed for a line
NEAR = 5  # sizes that are fitted whatever their loss


class IsoFlop(Settings):
    """Settings of approach 2: how runs are grouped into budgets, and which sizes are fitted."""

    # Runs whose FLOPs lie within this factor belong to one budget.
    same_budget: float = Field(1.25, gt=1)
    # Fit the sizes whose loss is at most this share above the lowest of their budget, and in any
    # case the 5 nearest to the best. Farther away the bowl is no parabola, and fewer sizes are too
    # noisy. The default was chosen on simulated sweeps and by leaving out runs (docs/scaling.md).
    # None: all sizes.
    within: float | None = Field(0.1, gt=0)
    # Fit this number of sizes nearest to the best, instead of those in `within`.
    nearest: int | None = Field(None, ge=LEAST_SIZES)


@dataclass(frozen=True)
class Bowl:
    """Parabola of one budget: loss = bottom + curvature (log N - log N*)^2, in nats per token."""

    flops: float  # budget, 6ND
    parameters: float  # N*
    tokens: float  # D* = C / 6N*
    loss: float  # at the bottom
    curvature: float
    rows: tuple[int, ...]  # row indices in the table of runs
    budget: tuple[int, ...]  # row indices of all runs of the budget, fitted or not


@dataclass(frozen=True)
class IsoFlopFit:
    """Fits of N*(C) and D*(C), the parabola of each budget, and the budgets that were excluded."""

    parameters: PowerLaw
    tokens: PowerLaw
    bowls: tuple[Bowl, ...]
    refused: tuple[LeftOut, ...]


def fit_isoflops(runs: RunsTable, settings: IsoFlop | None = None) -> IsoFlopFit:
    """Fit approach 2. Raises DataError if fewer than two budgets have a lowest point inside."""
    rules = settings or IsoFlop()
    bowls: list[Bowl] = []
    refused: list[LeftOut] = []
    stray: list[int] = []
    for rows in group_by_budget(runs, rules):
        if len(find_levels(runs.parameters[rows])) < LEAST_SIZES:
            stray.append(len(rows))
            continue
        found = _fit_bowl(runs, rows, rules)
        if isinstance(found, Bowl):
            bowls.append(found)
        else:
            flops = float(np.median(runs.flops_6nd[rows]))
            refused.append(LeftOut(name=f"budget {flops:.3g}", reason=found))
    if stray:
        reason = f"their budgets have fewer than {LEAST_SIZES} sizes"
        refused.append(
            LeftOut(name=f"{sum(stray)} {'run' if sum(stray) == 1 else 'runs'}", reason=reason)
        )
    if len(bowls) < LEAST_BUDGETS:
        why = "; ".join(f"{one.name}: {one.reason}" for one in refused[:3])
        raise DataError(
            f"isoFLOP curves: a line needs {LEAST_BUDGETS} budgets with a minimum between their "
            f"sizes, found {len(bowls)}" + (f" ({why})" if why else "")
        )
    at = np.array([bowl.flops for bowl in bowls])
    return IsoFlopFit(
        parameters=fit_power(at, np.array([bowl.parameters for bowl in bowls])),
        tokens=fit_power(at, np.array([bowl.tokens for bowl in bowls])),
        bowls=tuple(bowls),
        refused=tuple(refused),
    )


def refit_isoflops(fit: IsoFlopFit, runs: RunsTable, counts: NDArray[np.int64]) -> Floats:
    """Return ln coefficient and exponent of N*(C), [K, 2], for each draw's counts [K, R].

    Each draw fits its own parabola to the rows of each budget. A budget whose parabola has no
    lowest point inside is left out of that draw's line. A draw without a line is NaN.
    """
    log_best = np.stack([_refit_bowl(bowl, runs, counts) for bowl in fit.bowls], axis=1)
    log_flops = np.log([bowl.flops for bowl in fit.bowls])
    known = np.isfinite(log_best)
    weight = known / np.maximum(known.sum(axis=1, keepdims=True), 1)
    y = np.where(known, log_best, 0)
    x = np.where(known, log_flops - (weight * log_flops).sum(axis=1, keepdims=True), 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        exponent = (x * y).sum(axis=1) / (x * x).sum(axis=1)
    middle = (weight * (y - exponent[:, None] * log_flops)).sum(axis=1)
    found = np.stack([middle, exponent], axis=1)
    found[known.sum(axis=1) < LEAST_BUDGETS] = np.nan
    return found


def _refit_bowl(bowl: Bowl, runs: RunsTable, counts: NDArray[np.int64]) -> Floats:
    """Return log N* [K] of each draw, or NaN if its parabola has no lowest point inside."""
    rows = np.array(bowl.rows)
    log_n = np.log(runs.parameters[rows])
    loss = runs.loss[rows]
    weight = counts[:, rows]
    x = log_n - log_n.mean()
    powers = np.stack([np.ones_like(x), x, x * x])  # [3, R]
    moments = np.einsum("kr,ir,jr->kij", weight, powers, powers)
    sides = np.einsum("kr,ir,r->ki", weight, powers, loss)
    sizes = np.unique(log_n)
    drawn = np.stack([weight[:, log_n == size].sum(axis=1) for size in sizes], axis=1) > 0
    enough = drawn.sum(axis=1) >= 3  # a parabola has three coefficients
    moments[~enough] = np.eye(3)
    _, slope, curvature = np.linalg.solve(moments, sides[..., None])[..., 0].T
    with np.errstate(divide="ignore", invalid="ignore"):
        best = log_n.mean() - slope / (2 * curvature)
    least = np.where(drawn, sizes, np.inf).min(axis=1)
    most = np.where(drawn, sizes, -np.inf).max(axis=1)
    inside = enough & (curvature > 0) & (best > least) & (best < most)
    return np.where(inside, best, np.nan)


def group_by_budget(runs: RunsTable, settings: IsoFlop | None = None) -> list[Places]:
    """Return the row indices of each budget, cheapest first.

    Rows are grouped by the column `budget` if all have one, otherwise by similar 6ND: sorted FLOPs
    are split at the widest gap until each group is within the factor `same_budget`.
    """
    rules = settings or IsoFlop()
    if not np.isnan(runs.budget).any():
        return [np.flatnonzero(runs.budget == value) for value in np.unique(runs.budget)]
    order = np.argsort(runs.flops_6nd, kind="stable")
    return _cut_into_budgets(order, np.log(runs.flops_6nd), float(np.log(rules.same_budget)))


def _cut_into_budgets(order: Places, log_flops: Floats, width: float) -> list[Places]:
    values = log_flops[order]
    if values[-1] - values[0] <= width:
        return [order]
    at = int(np.argmax(np.diff(values))) + 1
    return _cut_into_budgets(order[:at], log_flops, width) + _cut_into_budgets(
        order[at:], log_flops, width
    )


def _select_sizes(runs: RunsTable, rows: Places, rules: IsoFlop) -> Floats:
    """Return the sizes of one budget that its parabola is fitted to."""
    sizes = np.unique(runs.parameters[rows])
    if rules.nearest is None and rules.within is None:
        return sizes
    lowest = runs.parameters[rows][int(np.argmin(runs.loss[rows]))]
    by_distance = np.argsort(np.abs(np.log(sizes / lowest)), kind="stable")
    kept = np.zeros(len(sizes), dtype=bool)
    kept[by_distance[: rules.nearest or NEAR]] = True
    if rules.nearest is None and rules.within is not None:
        means = [runs.loss[rows][runs.parameters[rows] == size].mean() for size in sizes]
        kept |= np.array(means) <= runs.loss[rows].min() * (1 + rules.within)
    return sizes[kept]


def _fit_bowl(runs: RunsTable, rows: Places, rules: IsoFlop) -> Bowl | str:
    """Fit the parabola of one budget, or return the reason why there is none."""
    flops = float(np.median(runs.flops_6nd[rows]))
    sizes = np.unique(runs.parameters[rows])
    lowest = runs.parameters[rows][int(np.argmin(runs.loss[rows]))]
    if lowest in (sizes[0], sizes[-1]):
        which, wanted = ("smallest", "smaller") if lowest == sizes[0] else ("largest", "larger")
        return (
            f"no minimum inside: the {which} of its {len(sizes)} sizes, {lowest:.3g}, has the "
            f"lowest loss; train {wanted} ones"
        )
    budget = tuple(int(row) for row in rows)
    rows = rows[np.isin(runs.parameters[rows], _select_sizes(runs, rows, rules))]
    x = np.log(runs.parameters[rows])
    middle = x.mean()
    curvature, slope, offset = np.polyfit(x - middle, runs.loss[rows], 2)
    if curvature <= 0:
        return "its losses have no minimum: the parabola opens downward"
    bottom = -slope / (2 * curvature)
    best = float(np.exp(middle + bottom))
    if not x.min() < middle + bottom < x.max():
        return f"no minimum inside: the parabola's minimum, {best:.3g}, is outside its sizes"
    return Bowl(
        flops=flops,
        parameters=best,
        tokens=flops / (6 * best),
        loss=float(offset - curvature * bottom**2),
        curvature=float(curvature),
        rows=tuple(int(row) for row in rows),
        budget=budget,
    )
