"""Many small robust regressions at once, each to its own minimum.

What is minimised is the sum over rows of a loss of the residuals of log loss:

    S(theta) = sum_i w_i rho(f_i(theta) - y_i)

The sum, not the mean: dividing by the rows moves no minimum, but a stopping rule with a fixed
tolerance then stops early, which is how a published fit went wrong (arXiv:2404.10102, section 3).
Here the rule is relative as well: a problem is solved when Newton's model promises less than
`Search.tolerance` of its objective.

The method is Newton's with the eigenvalues of the scaled Hessian made positive (saddle-free) and
a damping that follows the ratio of found to promised descent. Of Huber's loss with a small delta
most rows lie on the linear part, where only the curvature of f counts: the exact Hessian is what
makes this converge in tens of steps, quadratically at the end.

Shapes: K problems, R rows, P coordinates of theta.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Field, Settings
from trainrig.scaling.laws.forms import Array, Positive

Mask = NDArray[np.bool_]
Chosen = NDArray[Any]  # a mask, or indices


class Huber(Settings):
    """r^2/2 up to `delta`, then straight: a row that is far off pulls no harder for it."""

    kind: Literal["Huber"] = "Huber"
    delta: Positive = 1e-3  # of log loss; Hoffmann et al. 2022, arXiv:2203.15556, section D.2

    @property
    def deltas(self) -> tuple[float, ...]:
        """The deltas to solve for, one after the other."""
        return (self.delta,)


class Lad(Settings):
    """|r|: least absolute deviations, which Huber's loss becomes (over delta) as delta vanishes.

    Reached by continuation: solved for each delta from the minimum at the one before. The fit
    published in arXiv:2404.10102 is this one: its scale, fitted along, shrinks delta to 5e-9.
    """

    kind: Literal["Lad"] = "Lad"
    deltas: tuple[Positive, ...] = (1e-3, 1e-4, 1e-6, 1e-8)  # of log loss


class Squares(Settings):
    """r^2/2: least squares of log loss, which every outlier pulls at."""

    kind: Literal["Squares"] = "Squares"

    @property
    def deltas(self) -> tuple[float, ...]:
        """Huber's loss with no straight part."""
        return (np.inf,)


Loss = Annotated[Huber | Lad | Squares, Field(discriminator="kind")]


class MinimiseSettings(Settings):
    """When to stop."""

    tolerance: Positive = 1e-13  # descent still promised, as a share of the objective
    first_delta: Positive = 0.1  # of log loss: from afar, each start is first solved for this
    steps: int = Field(200, ge=1)  # at most; what needs more counts as not converged
    batch: int = Field(64, ge=1)  # problems at once: their [K, R, P] floats should fit the cache


@dataclass(frozen=True)
class CurveValue:
    """A curve at K thetas."""

    value: Array  # [K, R]
    slope: Array  # [K, R, P]
    bend: Callable[[Array], Array]  # coefficients [K, R] -> sum of them times f_i'' [K, P, P]


class CurveFunction(Protocol):
    """What the rows should be, as a function of theta: log loss, usually."""

    def __call__(self, theta: Array) -> CurveValue:
        """The curve at theta [K, P]."""


@dataclass(frozen=True)
class Minima:
    """Where K problems ended."""

    theta: Array  # [K, P]
    objective: Array  # [K]
    gradient: Array  # [K, P], of the objective by theta
    promised: Array  # [K], the descent that Newton's model still saw, as a share of the objective
    converged: Mask  # [K]

    def take(self, rows: Chosen) -> "Minima":
        """Those of `rows`."""
        return Minima(*(column[rows] for column in vars(self).values()))

    def combine(self, other: "Minima") -> "Minima":
        """These, then those of `other`."""
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return Minima(*(np.concatenate(columns) for columns in both))


def minimise(
    curve: CurveFunction,
    start: Array,  # [K, P]
    targets: Array,  # [K, R], or [R] for all
    weights: Array,  # [K, R]
    deltas: tuple[float | Array, ...],  # of Huber's loss: each [R] or one for all rows
    search: MinimiseSettings,
) -> Minima:
    """The minima found from each start, solved for each delta from where the last one ended."""
    targets = np.broadcast_to(targets, weights.shape)
    ends = []
    for at in _split_batches(len(start), search.batch):
        theta = start[at]
        for delta in deltas:
            rows = _Rows(curve, targets[at], weights[at], delta)
            with np.errstate(all="ignore"):  # wild steps overflow; their loss refuses them
                found = _descend(rows, theta, search)
            theta = found.theta
        ends.append(found)
    columns = zip(*(vars(end).values() for end in ends), strict=True)
    return Minima(*(np.concatenate(column) for column in columns))


def _split_batches(count: int, size: int) -> Iterator[slice]:
    return (slice(begin, begin + size) for begin in range(0, count, size))


@dataclass(frozen=True)
class _State:
    """The objective around K thetas, in coordinates of comparable curvature."""

    theta: Array  # [K, P]
    objective: Array  # [K]
    scale: Array  # [K, P]: theta_p * scale_p are the coordinates
    gradient: Array  # [K, P]
    hessian: Array  # [K, P, P]

    def take(self, rows: Chosen) -> "_State":
        return _State(*(column[rows] for column in vars(self).values()))

    def put(self, rows: Chosen, other: "_State") -> None:
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine[rows] = theirs


@dataclass(frozen=True)
class _Rows:
    """What K curves are held against."""

    curve: CurveFunction
    targets: Array  # [K, R]
    weights: Array  # [K, R]
    delta: float | Array  # or [R]

    @property
    def rounding(self) -> Array:
        """[K]: an objective that is 0 but for rounding, as of runs without noise."""
        return np.asarray((self.weights * 1e-10 * np.minimum(1e-10, self.delta)).sum(1))

    def take(self, rows: Chosen) -> "_Rows":
        return _Rows(self.curve, self.targets[rows], self.weights[rows], self.delta)

    def look(self, theta: Array) -> _State:
        point = self.curve(theta)
        residual = point.value - self.targets
        size = np.abs(residual)
        capped = np.minimum(size, self.delta)
        pull = self.weights * np.copysign(capped, residual)  # w rho'
        slope_T = np.swapaxes(point.slope, 1, 2)  # [K, P, R]
        # The curvature of the parabola that touches rho at r from above: never 0, a fair scale.
        touching = self.weights * np.divide(capped, size, out=np.ones_like(size), where=size > 0)
        scale = np.sqrt(np.einsum("kpr,kr->kp", slope_T**2, touching))
        scale = np.where(scale > 0, scale, 1)  # a coordinate that changes no row: it stays
        inside = self.weights * (size <= self.delta)
        hessian = (slope_T * inside[:, None]) @ point.slope + point.bend(pull)
        return _State(
            theta,
            (self.weights * capped * (size - capped / 2)).sum(1),
            scale,
            (slope_T @ pull[..., None])[..., 0] / scale,
            hessian / (scale[:, :, None] * scale[:, None, :]),
        )


def _descend(rows: _Rows, start: Array, search: MinimiseSettings) -> Minima:
    state, final = rows.look(start.copy()), rows.look(start.copy())
    promised = np.full(len(start), np.inf)
    left, damping = np.arange(len(start)), np.full(len(start), 1e-2)
    for _ in range(search.steps):
        values, vectors = np.linalg.eigh(_replace_non_finite(state.hessian))
        along = (state.gradient[:, None] @ vectors)[:, 0]  # the gradient by eigenvectors
        sizes = np.abs(values) + 1e-14
        promised[left] = (along**2 / sizes).sum(1) / 2 / (state.objective + rows.rounding)
        open_ = (promised[left] > search.tolerance) & (damping < 1e8)
        if not open_.all():
            final.put(left[~open_], state.take(~open_))
            rows, state, left, damping = (
                rows.take(open_), state.take(open_), left[open_], damping[open_],
            )  # fmt: skip
            if not len(left):
                break
            vectors, along, sizes = vectors[open_], along[open_], sizes[open_]
        step = -(vectors @ (along / (sizes + damping[:, None]))[..., None])[..., 0]
        there = rows.look(state.theta + step / state.scale)
        better, damping = _judge_steps(state, there, step, damping)
        state.put(better, there.take(better))
    final.put(left, state)
    gradient = final.gradient * final.scale
    return Minima(final.theta, final.objective, gradient, promised, promised <= search.tolerance)


def _judge_steps(here: _State, there: _State, step: Array, damping: Array) -> tuple[Mask, Array]:
    """Which steps went down, and how carefully to take the next."""
    curved = (step[:, None] @ here.hessian @ step[..., None])[:, 0, 0]
    hoped = -(here.gradient * step).sum(1) - curved / 2
    descent = here.objective - there.objective
    better = descent > 0
    ratio = np.where(better, descent / np.maximum(hoped, 1e-300), -1)
    factor = np.where(ratio > 0.5, 0.2, np.where(ratio > 0.1, 1, 4))
    return better, np.clip(damping * factor, 1e-12, None)


def _replace_non_finite(hessian: Array) -> Array:
    """A matrix that eigh takes, also where a start overflows."""
    whole = np.asarray(np.isfinite(hessian).all(axis=(1, 2)))
    return (
        hessian
        if whole.all()
        else np.where(whole[:, None, None], hessian, np.eye(hessian.shape[-1]))
    )


class LogSumExp:
    """f = log sum_j exp(X_j theta): the log of a sum of power laws, exactly differentiated."""

    def __init__(self, designs: Array) -> None:
        """`designs` [J, R, P]: the coefficients of each term's logarithm."""
        self.designs = designs
        terms, rows, coordinates = designs.shape
        squares = designs[:, :, :, None] * designs[:, :, None, :]
        self._squares = squares.reshape(terms, rows, coordinates**2)

    def __call__(self, theta: Array) -> CurveValue:
        """The sum's logarithm at theta [K, P]."""
        logs = theta @ np.swapaxes(self.designs, 1, 2)  # [J, K, R]
        highest = logs.max(0)
        shares = np.exp(logs - highest)
        total = shares.sum(0)
        shares /= total
        slope = np.zeros((*total.shape, theta.shape[1]))
        for share, design in zip(shares, self.designs, strict=True):
            slope += share[..., None] * design

        def bend(coefficients: Array) -> Array:
            """f'' = sum_j s_j X_j X_j' - f' f''s transpose, summed over rows."""
            curved = sum(
                (coefficients * share) @ square
                for share, square in zip(shares, self._squares, strict=True)
            )
            outer = np.swapaxes(slope, 1, 2) * coefficients[:, None] @ slope
            return np.asarray(curved).reshape(outer.shape) - outer

        return CurveValue(highest + np.log(total), slope, bend)


class Differenced:
    """A curve that is only known by its values; slopes and bends by central differences."""

    def __init__(self, value: Callable[[Array], Array], step: float = 1e-5) -> None:
        """`value`: theta [K, P] -> [K, R]; `step` suits coordinates of order 1, as logs are."""
        self.value, self.step = value, step

    def __call__(self, theta: Array) -> CurveValue:
        """The curve at theta [K, P]."""
        count = theta.shape[1]
        steps = self.step * np.concatenate([np.zeros((1, count)), np.eye(count), -np.eye(count)])
        shifted = (theta + steps[:, None]).reshape(-1, count)  # all at once: a call has its price
        here, *ends = self.value(shifted).reshape(len(steps), len(theta), -1)
        sides = zip(ends[:count], ends[count:], strict=True)
        slope = np.stack([(up - down) / (2 * self.step) for up, down in sides], -1)
        return CurveValue(here, slope, lambda c: self._compute_bend(theta, c))

    def _compute_bend(self, theta: Array, coefficients: Array) -> Array:
        """Wider steps: second differences lose twice the digits, and need fewer."""
        count, wide = theta.shape[1], 1e-3
        shifts = wide * np.eye(count)
        bent = np.empty((len(theta), count, count))

        def weigh(shift: Array) -> Array:
            return np.asarray((coefficients * self.value(theta + shift)).sum(1))

        for p in range(count):
            for q in range(p + 1):
                a, b = shifts[p], shifts[q]
                corners = weigh(a + b) - weigh(a - b) - weigh(b - a) + weigh(-a - b)
                bent[:, p, q] = bent[:, q, p] = corners / (4 * wide**2)
        return bent
