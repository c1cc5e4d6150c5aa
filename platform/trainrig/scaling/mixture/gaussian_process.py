"""Gaussian process that predicts the loss of a mixture, with an error bar.

A source's share acts by its logarithm, as tokens do in a scaling law: from none to a thousandth
matters about as much as from a tenth to all. Therefore the process uses log(share + floor) as
input, with one length scale for each source; a long one means that the source hardly matters. Its
kernel is Matérn's of smoothness 5/2 (Rasmussen & Williams 2006, "Gaussian Processes for Machine
Learning", eq. 4.17). The scales and the noise maximise the marginal likelihood (eq. 5.8, gradient
5.9).

Shapes: R runs, Q queried mixtures, S sources.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, lapack, solve_triangular
from scipy.optimize import minimize

from trainrig.scaling.mixture.runs import Array

FLOOR = 1e-3  # a smaller share counts as none; mixtures are commonly written to three decimals
# The most iterations of the optimiser. Those after the fortieth change no rank correlation in the
# fourth decimal.
ITERATIONS = 60
# Logarithms of the inverse squared length scales, the signal's variance and the noise's variance,
# where the losses have mean 0 and variance 1.
START = (-1.0, 1.0, -4.0)
BOUNDS = ((-10.0, 8.0), (-5.0, 10.0), (-12.0, 2.0))


@dataclass(frozen=True, eq=False)
class GaussianProcess:
    """Gaussian process fitted to runs, with losses in nats per token."""

    points: Array  # [R, S] log shares
    centre: float  # mean of the losses
    spread: float  # standard deviation of the losses, by which they are scaled
    relevance: Array  # [S] inverse squared length scales
    signal: float  # variance of the signal, for scaled losses
    noise: float  # variance of the noise, for scaled losses
    factor: Array  # [R, R] lower Cholesky factor of the kernel with its noise
    weights: Array  # [R] factor of each run's covariance in a prediction

    @classmethod
    def fit(cls, shares: Array, losses: Array) -> "GaussianProcess":
        """Return the process of greatest marginal likelihood, deterministically."""
        points = np.log(shares + FLOOR)
        centre = float(losses.mean())
        spread = float(losses.std()) or 1.0
        scaled = (losses - centre) / spread
        start, bounds = _build_start_and_bounds(points.shape[1])
        found = minimize(
            _compute_objective,
            start,
            args=(points, scaled),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": ITERATIONS},
        )
        *relevance, signal, noise = np.exp(found.x)
        kernel = signal * _matern(points, points, np.array(relevance))[0]
        factor = cho_factor(kernel + noise * np.eye(len(points)), lower=True)
        return cls(
            points=points,
            centre=centre,
            spread=spread,
            relevance=np.array(relevance),
            signal=float(signal),
            noise=float(noise),
            factor=np.tril(factor[0]),
            weights=cho_solve(factor, scaled),
        )

    def predict(self, shares: Array) -> tuple[Array, Array]:
        """Return the expected losses and their standard deviations, both [Q].

        The deviations leave out the noise of a single run.
        """
        across = self._compute_cross_covariance(shares)
        reach = solve_triangular(self.factor, across, lower=True)
        variance = np.maximum(self.signal - (reach * reach).sum(axis=0), 0)
        return self._unscale(across), np.sqrt(variance) * self.spread

    def expect(self, shares: Array) -> Array:
        """Return the expected losses [Q] alone, at a tenth of the cost of `predict`."""
        return self._unscale(self._compute_cross_covariance(shares))

    def compute_covariance(self, shares: Array) -> Array:
        """Return the covariance [Q, Q] of the expected losses, in squared nats."""
        reach = solve_triangular(self.factor, self._compute_cross_covariance(shares), lower=True)
        queried = np.log(shares + FLOOR)
        within = self.signal * _matern(queried, queried, self.relevance)[0]
        return np.asarray((within - reach.T @ reach) * self.spread**2)

    def compute_residuals(self) -> Array:
        """Return the leave-one-out residuals [R], with unchanged scales (eq. 5.12)."""
        inverse = cho_solve((self.factor, True), np.eye(len(self.factor)))
        return np.asarray(self.spread * self.weights / np.diag(inverse))

    def _compute_cross_covariance(self, shares: Array) -> Array:
        queried = np.log(shares + FLOOR)
        return np.asarray(self.signal * _matern(self.points, queried, self.relevance)[0])

    def _unscale(self, across: Array) -> Array:
        return np.asarray(self.centre + self.spread * (self.weights @ across))


def _build_start_and_bounds(sources: int) -> tuple[Array, list[tuple[float, float]]]:
    relevance, *others = START
    start = np.array([relevance] * sources + others)
    return start, [BOUNDS[0]] * sources + list(BOUNDS[1:])


def _matern(a: Array, b: Array, relevance: Array) -> tuple[Array, Array]:
    """Return the kernel of all pairs of `a` and `b`, and its derivative by the squared distance."""
    a = a * np.sqrt(relevance)
    b = b * np.sqrt(relevance)
    squared = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2 * a @ b.T
    squared = np.maximum(squared, 0)
    scaled_distance = np.sqrt(5 * squared)
    decay = np.exp(-scaled_distance)
    return (1 + scaled_distance + 5 / 3 * squared) * decay, -5 / 6 * (1 + scaled_distance) * decay


def _compute_objective(logs: Array, points: Array, scaled: Array) -> tuple[float, Array]:
    """Return the negative log marginal likelihood, up to a constant, and its gradient by `logs`."""
    *_, signal, noise = np.exp(logs)
    relevance = np.exp(logs[:-2])
    kernel, slope = _matern(points, points, relevance)
    factor, failed = lapack.dpotrf(signal * kernel + noise * np.eye(len(points)), lower=1)
    # the noise is too small for these points; a large value makes the optimiser step back
    if failed:
        return 1e12, np.zeros_like(logs)
    weights = cho_solve((factor, True), scaled)
    inverse, _ = lapack.dpotri(factor, lower=1)
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    pull = inverse - np.outer(weights, weights)  # eq. 5.9, with the sign for a minimum
    by_distance = signal * pull * slope
    # Sum of w_ij (x_i - x_j)^2 over pairs, for each source, without an [R, R, S] array of
    # differences.
    spread = by_distance.sum(axis=1) @ (points * points) - (points * (by_distance @ points)).sum(0)
    by_signal = 0.5 * signal * (pull * kernel).sum()
    by_noise = 0.5 * noise * np.trace(pull)
    value = 0.5 * float(scaled @ weights) + float(np.log(np.diag(factor)).sum())
    return value, np.array([*(relevance * spread), by_signal, by_noise])
