"""Batched robust regressions, each minimised separately from its own start.

The objective is the sum over rows of a loss of the residuals of log loss:

    S(theta) = sum_i w_i rho(f_i(theta) - y_i)

It is the sum, not the mean. Dividing by the number of rows moves no minimum, but a stopping rule
with a fixed tolerance then stops too early; that is how a published fit went wrong
(arXiv:2404.10102, section 3). Here the rule is relative, too: a problem is solved when Newton's
model predicts a further decrease below `MinimiseSettings.tolerance` of the objective.

The method is saddle-free Newton: the eigenvalues of the scaled Hessian are made positive, and the
damping follows the ratio of actual to predicted decrease. With Huber's loss and a small delta most
rows lie on the linear part, where only the curvature of f counts. With the exact Hessian the search
converges in tens of steps, quadratically at the end.

Shapes: K problems, R rows, P coordinates of theta.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Field, Settings
from trainrig.scaling.laws.law_forms import Array, Positive

Mask = NDArray[np.bool_]
Chosen = NDArray[Any]  # a boolean mask or indices
STEP = 1e-5  # step of differences, which suits coordinates of order 1, such as logarithms


class Huber(Settings):
    """Huber's loss: r^2/2 up to `delta`, then linear, so that outliers pull no harder."""

    kind: Literal["Huber"] = "Huber"
    delta: Positive = 1e-3  # unit: log loss; Hoffmann et al. 2022, arXiv:2203.15556, section D.2

    @property
    def deltas(self) -> tuple[float, ...]:
        """The deltas to solve for, in order."""
        return (self.delta,)


class Lad(Settings):
    """Least absolute deviations |r|, the limit of Huber's loss over delta as delta vanishes.

    The minimum is found by continuation: each delta is solved from the minimum at the one before.
    This is effectively the loss of the fit published in arXiv:2404.10102, where a fitted scale
    shrinks delta to 5e-9.
    """

    kind: Literal["Lad"] = "Lad"
    deltas: tuple[Positive, ...] = (1e-3, 1e-4, 1e-6, 1e-8)  # unit: log loss


class Squares(Settings):
    """Least squares of log loss, r^2/2, which is sensitive to outliers."""

    kind: Literal["Squares"] = "Squares"

    @property
    def deltas(self) -> tuple[float, ...]:
        """The deltas to solve for: infinite, so that no part is linear."""
        return (np.inf,)


Loss = Annotated[Huber | Lad | Squares, Field(discriminator="kind")]


class MinimiseSettings(Settings):
    """Settings of the minimisation: when it stops, and how many problems it solves at once."""

    # Stop when the predicted decrease is below this share of the objective.
    tolerance: Positive = 1e-13
    first_delta: Positive = 0.1  # Delta, in log loss, for which each distant start is solved first
    steps: int = Field(200, ge=1)  # most steps; a problem that needs more counts as not converged
    # Problems solved at once; their [K, R, P] floats should fit the cache.
    batch: int = Field(64, ge=1)


@dataclass(frozen=True)
class CurveValue:
    """Values and derivatives of a curve at K thetas."""

    value: Array  # [K, R]
    slope: Array  # [K, R, P]
    # Coefficients [K, R] to the sum over rows of coefficient times f_i'' [K, P, P].
    bend: Callable[[Array], Array]


class CurveFunction(Protocol):
    """Function of theta that the regression fits to the rows' targets, usually log loss."""

    def __call__(self, theta: Array) -> CurveValue:
        """Evaluate the curve at theta [K, P]."""


@dataclass(frozen=True)
class Minima:
    """Results of K minimisations."""

    theta: Array  # [K, P]
    objective: Array  # [K]
    gradient: Array  # [K, P] gradient of the objective with respect to theta
    promised: Array  # [K] decrease that Newton's model still predicted, as a share of the objective
    converged: Mask  # [K]

    def take(self, rows: Chosen) -> "Minima":
        """Return the minima selected by a mask or indices."""
        return Minima(*(column[rows] for column in vars(self).values()))

    def combine(self, other: "Minima") -> "Minima":
        """Return these minima followed by the `other` ones."""
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return Minima(*(np.concatenate(columns) for columns in both))


def minimise(
    curve: CurveFunction,
    start: Array,  # [K, P]
    targets: Array,  # [K, R], or [R] for all problems
    weights: Array,  # [K, R]
    deltas: tuple[float | Array, ...],  # Huber's deltas, each [R] or one number for all rows
    search: MinimiseSettings,
) -> Minima:
    """Minimise from each start, for each delta in turn from the minimum at the previous delta."""
    targets = np.broadcast_to(targets, weights.shape)
    ends = []
    for begin in range(0, len(start), search.batch):
        at = slice(begin, begin + search.batch)
        theta = start[at]
        for delta in deltas:
            rows = _Rows(curve, targets[at], weights[at], delta)
            # Steps that overflow have a non-finite loss and are rejected.
            with np.errstate(all="ignore"):
                found = _descend(rows, theta, search)
            theta = found.theta
        ends.append(found)
    columns = zip(*(vars(end).values() for end in ends), strict=True)
    return Minima(*(np.concatenate(column) for column in columns))


@dataclass(frozen=True)
class _State:
    """Objective and its derivatives at K thetas, in coordinates scaled to similar curvature."""

    theta: Array  # [K, P]
    objective: Array  # [K]
    scale: Array  # [K, P]; the scaled coordinates are theta_p * scale_p
    gradient: Array  # [K, P]
    hessian: Array  # [K, P, P]

    def take(self, rows: Chosen) -> "_State":
        return _State(*(column[rows] for column in vars(self).values()))

    def put(self, rows: Chosen, other: "_State") -> None:
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine[rows] = theirs


@dataclass(frozen=True)
class _Rows:
    """Targets, weights and loss of K problems."""

    curve: CurveFunction
    targets: Array  # [K, R]
    weights: Array  # [K, R]
    delta: float | Array  # one for all rows, or [R]

    @property
    def rounding(self) -> Array:
        """Objective [K] that a perfect fit has from rounding alone, as with runs without noise."""
        return np.asarray((self.weights * 1e-10 * np.minimum(1e-10, self.delta)).sum(1))

    def take(self, rows: Chosen) -> "_Rows":
        return _Rows(self.curve, self.targets[rows], self.weights[rows], self.delta)

    def evaluate(self, theta: Array) -> _State:
        point = self.curve(theta)
        residual = point.value - self.targets
        size = np.abs(residual)
        capped = np.minimum(size, self.delta)
        pull = self.weights * np.copysign(capped, residual)  # w rho'
        slope_T = np.swapaxes(point.slope, 1, 2)  # [K, P, R]
        # The curvature of the parabola that touches rho at r from above. It is never 0, so it sets
        # the scale.
        touching = self.weights * np.divide(capped, size, out=np.ones_like(size), where=size > 0)
        scale = np.sqrt(np.einsum("kpr,kr->kp", slope_T**2, touching))
        scale = np.where(scale > 0, scale, 1)  # a coordinate that affects no row stays where it is
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
    state = rows.evaluate(start.copy())
    final = rows.evaluate(start.copy())
    promised = np.full(len(start), np.inf)
    left = np.arange(len(start))
    damping = np.full(len(start), 1e-2)
    for _ in range(search.steps):
        values, vectors = np.linalg.eigh(_replace_non_finite(state.hessian))
        # The gradient in the basis of eigenvectors.
        along = (state.gradient[:, None] @ vectors)[:, 0]
        sizes = np.abs(values) + 1e-14
        promised[left] = (along**2 / sizes).sum(1) / 2 / (state.objective + rows.rounding)
        open_ = (promised[left] > search.tolerance) & (damping < 1e8)
        if not open_.all():
            final.put(left[~open_], state.take(~open_))
            rows = rows.take(open_)
            state = state.take(open_)
            left = left[open_]
            damping = damping[open_]
            if not len(left):
                break
            vectors = vectors[open_]
            along = along[open_]
            sizes = sizes[open_]
        step = -(vectors @ (along / (sizes + damping[:, None]))[..., None])[..., 0]
        there = rows.evaluate(state.theta + step / state.scale)
        better, damping = _judge_steps(state, there, step, damping)
        state.put(better, there.take(better))
    final.put(left, state)
    gradient = final.gradient * final.scale
    return Minima(final.theta, final.objective, gradient, promised, promised <= search.tolerance)


def _judge_steps(here: _State, there: _State, step: Array, damping: Array) -> tuple[Mask, Array]:
    """Return which steps decreased the objective, and the damping of the next steps."""
    curved = (step[:, None] @ here.hessian @ step[..., None])[:, 0, 0]
    hoped = -(here.gradient * step).sum(1) - curved / 2
    descent = here.objective - there.objective
    better = descent > 0
    ratio = np.where(better, descent / np.maximum(hoped, 1e-300), -1)
    factor = np.where(ratio > 0.5, 0.2, np.where(ratio > 0.1, 1, 4))
    return better, np.clip(damping * factor, 1e-12, None)


def _replace_non_finite(hessian: Array) -> Array:
    """Replace matrices with non-finite entries by identity matrices, which eigh accepts."""
    whole = np.asarray(np.isfinite(hessian).all(axis=(1, 2)))
    return (
        hessian
        if whole.all()
        else np.where(whole[:, None, None], hessian, np.eye(hessian.shape[-1]))
    )


class LogSumExp:
    """Curve f = log sum_j exp(X_j theta), a log of a sum of power laws, with its derivatives."""

    def __init__(self, designs: Array) -> None:
        """Store `designs` [J, R, P]: the coefficients of each term's logarithm."""
        self.designs = designs
        terms, rows, coordinates = designs.shape
        squares = designs[:, :, :, None] * designs[:, :, None, :]
        self._squares = squares.reshape(terms, rows, coordinates**2)

    @classmethod
    def of(cls, *terms: Sequence[Array | float]) -> "LogSumExp":
        """Return the curve of `terms`, each with a coefficient [R] or number by coordinate."""
        columns = np.broadcast_arrays(*(column for term in terms for column in term))
        return cls(np.stack(columns).reshape(len(terms), len(terms[0]), -1).transpose(0, 2, 1))

    def __call__(self, theta: Array) -> CurveValue:
        """Evaluate the curve at theta [K, P]."""
        logs = theta @ np.swapaxes(self.designs, 1, 2)  # [J, K, R]
        highest = logs.max(0)
        shares = np.exp(logs - highest)
        total = shares.sum(0)
        shares /= total
        slope = np.zeros((*total.shape, theta.shape[1]))
        for share, design in zip(shares, self.designs, strict=True):
            slope += share[..., None] * design

        def bend(coefficients: Array) -> Array:
            """Return the second derivatives of f, weighted by coefficients and summed over rows.

            f'' = sum_j s_j X_j X_j^T - f' f'^T.
            """
            curved = sum(
                (coefficients * share) @ square
                for share, square in zip(shares, self._squares, strict=True)
            )
            outer = np.swapaxes(slope, 1, 2) * coefficients[:, None] @ slope
            return np.asarray(curved).reshape(outer.shape) - outer

        return CurveValue(highest + np.log(total), slope, bend)


class Pinned:
    """Curve in which one coordinate of theta has a fixed value."""

    def __init__(self, curve: CurveFunction, coordinate: int, value: float) -> None:
        """Store the curve of all coordinates, and the value of the one at index `coordinate`."""
        self._curve = curve
        self._coordinate = coordinate
        self._value = value

    def __call__(self, theta: Array) -> CurveValue:
        """Evaluate the curve at theta [K, P - 1], the free coordinates."""
        at = self._coordinate
        point = self._curve(np.insert(theta, at, self._value, axis=1))

        def bend(coefficients: Array) -> Array:
            bent = point.bend(coefficients)
            return np.delete(np.delete(bent, at, axis=1), at, axis=2)

        return CurveValue(point.value, np.delete(point.slope, at, axis=2), bend)


class Differenced:
    """Curve of which only values are known, differentiated by central differences.

    Its second derivatives count as 0.
    """

    def __init__(self, value: Callable[[Array], Array]) -> None:
        """Store `value`, a function from theta [K, P] to [K, R]."""
        self.value = value

    def __call__(self, theta: Array) -> CurveValue:
        """Evaluate the curve at theta [K, P]."""
        count = theta.shape[1]
        steps = STEP * np.concatenate([np.zeros((1, count)), np.eye(count), -np.eye(count)])
        # One call for all shifts, because each call has a fixed cost.
        shifted = (theta + steps[:, None]).reshape(-1, count)
        here, *ends = self.value(shifted).reshape(len(steps), len(theta), -1)
        sides = zip(ends[:count], ends[count:], strict=True)
        slope = np.stack([(up - down) / (2 * STEP) for up, down in sides], -1)
        return CurveValue(here, slope, lambda c: np.zeros((len(theta), count, count)))
