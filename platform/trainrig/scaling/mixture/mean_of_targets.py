"""Regressions of the mean loss of several targets, with a separate regression for each target.

What lowers the loss of one target raises that of another, so the mean is less smooth than each
target. On RegMix's runs, the average of thirteen regressions ranks new mixtures better than one
regression of the average loss: its rank correlation is .993 instead of .979. A mixing law of the
average loss fails: .65 instead of .972.

Shapes: R runs, Q queried mixtures, S sources, T targets, P draws.
"""

from dataclasses import dataclass

import numpy as np

from trainrig.scaling.mixture.gaussian_process import GaussianProcess
from trainrig.scaling.mixture.mixing_law import MixingLaw
from trainrig.scaling.mixture.runs import Array

# share of the variance that is added, because rounding could make the covariance indefinite
JITTER = 1e-9


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
        by_cause = (
            self.mixing.T @ np.stack([deviation for _, deviation in predictions]) / len(predictions)
        )
        return np.mean([loss for loss, _ in predictions], axis=0), np.sqrt(
            (by_cause**2).sum(axis=0)
        )

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
