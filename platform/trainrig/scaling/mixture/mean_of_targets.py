"""The mean loss of several targets, each regressed by itself.

What lowers one target's loss raises another's, so their mean is rougher than each of them: on
RegMix's runs, thirteen regressions averaged order new mixtures better (rank correlation .993) than
one regression of the average (.979); a mixing law of the average fails (.65, else .972).

Shapes: R runs, Q mixtures asked about, S sources, T targets, P draws.
"""

from dataclasses import dataclass

import numpy as np

from trainrig.scaling.mixture.gaussian_process import GaussianProcess
from trainrig.scaling.mixture.mixing_law import MixingLaw
from trainrig.scaling.mixture.runs import Array

JITTER = 1e-9  # of the variance: a covariance rounded below 0 has no Cholesky factor


@dataclass(frozen=True, eq=False)
class MeanLaw:
    """A mixing law for each target."""

    laws: tuple[MixingLaw, ...]

    @classmethod
    def fit(cls, shares: Array, losses: Array) -> "MeanLaw":
        """The laws of `losses` [R, T]."""
        return cls(tuple(MixingLaw.fit(shares, target) for target in losses.T))

    def expect(self, shares: Array) -> Array:
        """[Q] the mean losses."""
        return np.asarray(np.mean([law.expect(shares) for law in self.laws], axis=0))


@dataclass(frozen=True, eq=False)
class MeanProcess:
    """A Gaussian process for each target; their errors go together as their residuals do."""

    processes: tuple[GaussianProcess, ...]
    mixing: Array  # [T, T] lower factor of the correlation of the residuals between targets

    @classmethod
    def fit(cls, shares: Array, losses: Array) -> "MeanProcess":
        """The processes of `losses` [R, T]."""
        processes = tuple(GaussianProcess.fit(shares, target) for target in losses.T)
        residuals = np.stack([process.compute_residuals() for process in processes])
        spread = np.maximum(residuals.std(axis=1), 1e-12)
        centred = (residuals - residuals.mean(axis=1, keepdims=True)) / spread[:, None]
        correlation = centred @ centred.T / residuals.shape[1]
        return cls(processes, np.linalg.cholesky(correlation + JITTER * np.eye(len(processes))))

    def expect(self, shares: Array) -> Array:
        """[Q] the mean losses."""
        return np.asarray(np.mean([process.expect(shares) for process in self.processes], axis=0))

    def predict(self, shares: Array) -> tuple[Array, Array]:
        """[Q] the mean losses, and their standard deviations without a run's own noise."""
        each = [process.predict(shares) for process in self.processes]
        by_cause = self.mixing.T @ np.stack([deviation for _, deviation in each]) / len(each)
        return np.mean([loss for loss, _ in each], axis=0), np.sqrt((by_cause**2).sum(axis=0))

    def compute_residuals(self) -> Array:
        """[R] by how much the processes of all other runs, scales kept, miss each run's mean."""
        return np.asarray(
            np.mean([process.compute_residuals() for process in self.processes], axis=0)
        )

    def draw(self, shares: Array, count: int, generator: np.random.Generator) -> Array:
        """[P, Q] mean losses under `count` functions drawn from what the runs leave open."""
        roots = [
            _factorise_covariance(process.compute_covariance(shares)) for process in self.processes
        ]
        functions = np.tile(self.expect(shares), (count, 1))
        for cause in self.mixing.T:
            root = sum(c * r for c, r in zip(cause, roots, strict=True)) / len(roots)
            functions += generator.standard_normal((count, len(shares))) @ np.transpose(root)
        return functions


def _factorise_covariance(covariance: Array) -> Array:
    """Its lower Cholesky factor."""
    scale = float(np.trace(covariance)) / len(covariance)
    for jitter in JITTER * 10.0 ** np.arange(7):
        try:
            return np.linalg.cholesky(covariance + jitter * scale * np.eye(len(covariance)))
        except np.linalg.LinAlgError:
            continue
    raise AssertionError("a kernel's covariance has no Cholesky factor")
