"""Regressions of the losses of mixtures, and their scores on mixtures that were left out.

Two regressions predict the loss of each target: a Gaussian process with an error bar, and the data
mixing law L(r) = c + k exp(sum_j t_j r_j) (Ye et al. 2024, arXiv:2403.16952, eq. 6). The mean loss
of several targets is the mean of their separate regressions.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve, lapack, solve_triangular
from scipy.optimize import minimize
from scipy.stats import rankdata

from trainrig.scaling.mixture.mixture_runs import Array

STARTS = 8  # number of starts of the optimiser
AGREE = 1e-6  # largest relative difference between sums of squares of the same minimum
# Most steps of the optimiser. The valley between a law's least loss and its steepness is long and
# bent: of 5,000 laws refitted to drawn residuals, the slowest took 462 steps.
STEPS = 1_000
CONVERGED = 1e-12  # relative decrease of the sum of squares below which a law has arrived
FIRST_DAMPING, MOST_DAMPING = 1e-3, 1e12  # relative; at the most, a step no longer changes a law


@dataclass(frozen=True, eq=False)
class MixingLaw:
    """Mixing law fitted to runs, with losses in nats per token."""

    least: float  # constant c, the loss that no mixture removes
    steepness: Array  # [S] t + log k
    starts_that_agree: float  # share of the starts that reached the least sum of squares

    @classmethod
    def fit(cls, shares: Array, losses: Array) -> "MixingLaw":
        """Return the law of least squares, the best of STARTS starts, deterministically."""
        generator = np.random.default_rng(0)
        starts = []
        for least in losses.min() * np.linspace(0.1, 0.95, STARTS):
            linear = np.linalg.lstsq(shares, np.log(losses - least), rcond=None)[0]
            starts.append([least, *(linear + generator.normal(0, 0.1, len(linear)))])
        ends = descend(np.array(starts), shares, np.tile(losses, (STARTS, 1)))
        costs = ((compute_expected(ends, shares) - losses) ** 2).sum(axis=1)
        constants = ends[int(costs.argmin())]
        agree = costs <= costs.min() * (1 + AGREE) + 1e-12
        return cls(float(constants[0]), constants[1:], float(agree.mean()))

    def expect(self, shares: Array) -> Array:
        """Return the expected losses, [Q]."""
        return np.asarray(self.least + np.exp(shares @ self.steepness))


def compute_expected(constants: Array, shares: Array) -> Array:
    """Return the losses [P, Q] that the laws with `constants` [P, 1 + S] expect at `shares`."""
    return np.asarray(constants[:, :1] + np.exp(constants[:, 1:] @ shares.T))


def descend(starts: Array, shares: Array, losses: Array) -> Array:
    """Return the constants [P, 1 + S] of least squares that are reached from `starts` [P, 1 + S].

    Row p is fitted to the losses [p] of `losses` [P, R]. All laws take the steps of Levenberg and
    Marquardt together. The least loss stays at zero or above: a step beyond that ends at zero, and
    the other constants take the step that is best with it.
    """
    found = starts.copy()
    squares = (shares[:, :, None] * shares[:, None, :]).reshape(len(shares), -1)
    diagonal = np.arange(starts.shape[1])
    damping = np.full(len(starts), FIRST_DAMPING)
    costs = ((compute_expected(found, shares) - losses) ** 2).sum(axis=1)
    going = np.arange(len(starts))
    for _ in range(STEPS):
        slopes = np.exp(found[going, 1:] @ shares.T)
        residuals = found[going, :1] + slopes - losses[going]
        hessian = np.empty((len(going), len(diagonal), len(diagonal)))
        hessian[:, 0, 0] = len(shares)
        hessian[:, 0, 1:] = hessian[:, 1:, 0] = slopes @ shares
        hessian[:, 1:, 1:] = (slopes**2 @ squares).reshape(len(going), *[shares.shape[1]] * 2)
        hessian[:, diagonal, diagonal] *= 1 + damping[going, None]
        gradient = np.column_stack([residuals.sum(axis=1), (slopes * residuals) @ shares])
        steps = -np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        below = found[going, 0] + steps[:, 0] < 0
        hessian[below, 0] = diagonal == 0
        gradient[below, 0] = found[going[below], 0]
        steps[below] = -np.linalg.solve(hessian[below], gradient[below, :, None])[:, :, 0]
        tried = found[going] + steps
        tried[:, 0] = np.maximum(tried[:, 0], 0)  # rounding may lead below
        cost = ((compute_expected(tried, shares) - losses[going]) ** 2).sum(axis=1)
        better = cost <= costs[going]
        still = ~better | (costs[going] - cost > CONVERGED * costs[going])
        damping[going] *= np.where(better, 0.2, 2.0)
        found[going[better]], costs[going[better]] = tried[better], cost[better]
        going = going[still & (damping[going] < MOST_DAMPING)]
        if not len(going):
            break
    return found


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


# share of the variance that is added, because rounding could make the covariance indefinite
JITTER = 1e-9


class MeanRegression(Protocol):
    """Regression of the mean loss of all targets, from which a mixture can be proposed."""

    @property
    def noise(self) -> float:
        """Standard deviation of one run's mean loss around the regression, in nats per token."""

    def expect(self, shares: Array) -> Array:
        """Return the expected mean losses, [Q]."""

    def predict(self, shares: Array) -> tuple[Array, Array]:
        """Return the expected mean losses and their standard deviations, both [Q]."""

    def draw(self, shares: Array, count: int, generator: np.random.Generator) -> Array:
        """Return mean losses [P, Q] under `count` functions that fit the runs about as well."""


@dataclass(frozen=True, eq=False)
class MeanLaw:
    """Mixing laws, one for each target."""

    laws: tuple[MixingLaw, ...]

    @classmethod
    def fit(cls, shares: Array, losses: Array) -> "MeanLaw":
        """Return one law for each column of `losses` [R, T]."""
        return cls(tuple(MixingLaw.fit(shares, target) for target in losses.T))

    def expect(self, shares: Array) -> Array:
        """Return the expected mean losses, [Q]."""
        return np.asarray(np.mean([law.expect(shares) for law in self.laws], axis=0))


@dataclass(frozen=True, eq=False)
class MeanProcess:
    """Gaussian processes, one for each target, with errors that correlate as their residuals do."""

    processes: tuple[GaussianProcess, ...]
    mixing: Array  # [T, T] lower Cholesky factor of the correlation of residuals between targets

    @classmethod
    def fit(cls, shares: Array, losses: Array) -> "MeanProcess":
        """Return one process for each column of `losses` [R, T]."""
        processes = tuple(GaussianProcess.fit(shares, target) for target in losses.T)
        residuals = np.stack([process.compute_residuals() for process in processes])
        spread = np.maximum(residuals.std(axis=1), 1e-12)
        centred = (residuals - residuals.mean(axis=1, keepdims=True)) / spread[:, None]
        correlation = centred @ centred.T / residuals.shape[1]
        return cls(processes, np.linalg.cholesky(correlation + JITTER * np.eye(len(processes))))

    def expect(self, shares: Array) -> Array:
        """Return the expected mean losses, [Q]."""
        return np.asarray(np.mean([process.expect(shares) for process in self.processes], axis=0))

    def predict(self, shares: Array) -> tuple[Array, Array]:
        """Return the expected mean losses and their standard deviations, both [Q].

        The deviations leave out the noise of a single run.
        """
        predictions = [process.predict(shares) for process in self.processes]
        deviations = self._combine_deviations(np.stack([dev for _, dev in predictions]))
        return np.mean([loss for loss, _ in predictions], axis=0), deviations

    @property
    def noise(self) -> float:
        """Standard deviation of one run's mean loss around the processes, in nats per token."""
        by_target = [np.sqrt(process.noise) * process.spread for process in self.processes]
        return float(self._combine_deviations(np.array(by_target)))

    def _combine_deviations(self, deviations: Array) -> Array:
        """Return the deviations of the mean of all targets, whose own are `deviations` [T, ...]."""
        by_cause = self.mixing.T @ deviations / len(self.processes)
        return np.asarray(np.sqrt((by_cause**2).sum(axis=0)))

    def compute_residuals(self) -> Array:
        """Return the leave-one-out residuals of each run's mean loss, [R].

        Each run is predicted by the processes of all other runs, with unchanged scales.
        """
        return np.asarray(
            np.mean([process.compute_residuals() for process in self.processes], axis=0)
        )

    def draw(self, shares: Array, count: int, generator: np.random.Generator) -> Array:
        """Return mean losses [P, Q] under `count` functions drawn from the processes."""
        roots = [
            _factorise_covariance(process.compute_covariance(shares)) for process in self.processes
        ]
        functions = np.tile(self.expect(shares), (count, 1))
        for cause in self.mixing.T:
            root = sum(c * r for c, r in zip(cause, roots, strict=True)) / len(roots)
            functions += generator.standard_normal((count, len(shares))) @ np.transpose(root)
        return functions


def _factorise_covariance(covariance: Array) -> Array:
    """Return the lower Cholesky factor of `covariance`, with as much jitter as it needs."""
    scale = float(np.trace(covariance)) / len(covariance)
    for jitter in JITTER * 10.0 ** np.arange(7):
        try:
            return np.linalg.cholesky(covariance + jitter * scale * np.eye(len(covariance)))
        except np.linalg.LinAlgError:
            continue
    raise AssertionError("a kernel's covariance has no Cholesky factor")


FOLDS = 5


@dataclass(frozen=True, eq=False)
class PredictedLosses:
    """Predicted losses of runs with their measured losses, in nats per token."""

    predicted: Array  # [R]
    actual: Array  # [R]

    @property
    def rank_correlation(self) -> float:
        """Spearman's rank correlation, 1 for the same order; NaN if the values do not vary."""
        return compute_correlation(rankdata(self.predicted), rankdata(self.actual))

    @property
    def error(self) -> float:
        """Root mean square error, in nats per token."""
        return float(np.sqrt(np.mean((self.predicted - self.actual) ** 2)))


def compute_correlation(a: Array, b: Array) -> float:
    """Return Pearson's correlation of two vectors, or NaN where one of them does not vary."""
    a = a - a.mean()
    b = b - b.mean()
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale else float("nan")


def predict_left_out(process: MeanProcess, losses: Array) -> PredictedLosses:
    """Return the loss of each run as predicted from all other runs.

    The length scales and the noise are those of the fit to all runs.
    """
    actual = losses.mean(axis=1)
    return PredictedLosses(actual - process.compute_residuals(), actual)


def cross_validate_law(shares: Array, losses: Array, seed: int) -> PredictedLosses:
    """Return the loss of each run as predicted by mixing laws fitted to the other folds."""
    order = np.random.default_rng(seed).permutation(len(losses))
    predicted = np.empty(len(losses))
    for fold in range(FOLDS):
        held_out = order[fold::FOLDS]
        others = np.setdiff1d(order, held_out)
        predicted[held_out] = MeanLaw.fit(shares[others], losses[others]).expect(shares[held_out])
    return PredictedLosses(predicted, losses.mean(axis=1))
