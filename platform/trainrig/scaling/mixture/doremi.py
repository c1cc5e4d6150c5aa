"""DoReMi: weights by what a small model still has to learn (Xie et al. 2023, arXiv:2305.10429).

A proxy is trained on the weights while they move towards the domains on which it is worst against
a reference; the weights to train the large model on are the mean over its steps (algorithm 1).

Shapes: K domains, M steps.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.scaling.mixture.runs import Array


class DoReMi(Settings):
    """The update of algorithm 1, with the paper's constants."""

    rate: float = Field(1.0, gt=0)  # eta, per nat of excess
    smoothing: float = Field(1e-3, ge=0, le=1)  # c: the share that is spread evenly

    def step(self, weights: ArrayLike, excess: ArrayLike) -> Array:
        """The next weights [K], which sum to 1.

        `excess` [K] is each domain's loss of the proxy above that of the reference, in nats per
        token; where the proxy is the better one, it counts as 0.
        """
        now, behind = np.asarray(weights, np.float64), np.asarray(excess, np.float64)
        if not np.isfinite(behind).all():
            raise DataError(f"DoReMi: an excess loss is no number: {behind.tolist()}")
        behind = np.maximum(behind, 0)
        raised = now * np.exp(self.rate * (behind - behind.max()))  # the shift cancels: no overflow
        return np.asarray((1 - self.smoothing) * raised / raised.sum() + self.smoothing / len(now))

    def compute_path(self, excesses: ArrayLike, start: ArrayLike | None = None) -> Array:
        """[M, K] the weights after each step of `excesses` [M, K], from `start` or from even."""
        rows = np.asarray(excesses, np.float64)
        weights = (
            np.full(rows.shape[1], 1 / rows.shape[1])
            if start is None
            else np.asarray(start, np.float64) / np.sum(start)
        )
        path = []
        for excess in rows:
            weights = self.step(weights, excess)
            path.append(weights)
        return np.stack(path)

    def compute_weights(self, excesses: ArrayLike, start: ArrayLike | None = None) -> Array:
        """[K] what to train the large model on: the mean of the path."""
        return np.asarray(self.compute_path(excesses, start).mean(axis=0))


def compute_excess(
    proxy: Mapping[str, Sequence[float]], reference: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """By domain, the mean of max(proxy - reference, 0) over the losses of the same tokens.

    Clipped token by token, as algorithm 1 does: a token that the proxy predicts better does not
    make up for another. Raises DataError for a domain whose tokens differ.
    """
    excess = {}
    for domain, losses in proxy.items():
        other = reference.get(domain, ())
        if len(losses) != len(other) or not len(losses):
            raise DataError(
                f"DoReMi: domain '{domain}' has {len(losses)} losses of the proxy and {len(other)} "
                "of the reference; both are to be measured on the same tokens"
            )
        excess[domain] = float(np.maximum(np.subtract(losses, other), 0).mean())
    return excess
