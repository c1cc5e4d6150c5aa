"""DoReMi's weights of domains from excess losses (Xie et al. 2023, arXiv:2305.10429, algorithm 1).

A proxy model is trained while the weights move towards the domains on which its loss exceeds that
of a reference model the most. The weights for the large model are the mean over the proxy's steps.
No verb trains the two models, so this is an example of the update and not part of the package.

Shapes: K domains, M steps.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainrig.config import Field, Settings
from trainrig.errors import DataError

Array = NDArray[np.float64]


class DoReMi(Settings):
    """Weight update of algorithm 1, with the paper's constants."""

    rate: float = Field(1.0, gt=0)  # step size eta of the update, per nat of excess loss
    # smoothing c: the share of the weights that is spread evenly over all domains
    smoothing: float = Field(1e-3, ge=0, le=1)

    def step(self, weights: ArrayLike, excess: ArrayLike) -> Array:
        """Return the weights [K] after one update, which sum to 1.

        `excess` [K] is the loss of the proxy minus that of the reference for each domain, in nats
        per token. A domain on which the proxy is better counts as 0.
        """
        now = np.asarray(weights, np.float64)
        behind = np.asarray(excess, np.float64)
        if not np.isfinite(behind).all():
            raise DataError(f"DoReMi: an excess loss is not a finite number: {behind.tolist()}")
        behind = np.maximum(behind, 0)
        # the shift cancels and avoids overflow
        raised = now * np.exp(self.rate * (behind - behind.max()))
        return np.asarray((1 - self.smoothing) * raised / raised.sum() + self.smoothing / len(now))

    def compute_path(self, excesses: ArrayLike, start: ArrayLike | None = None) -> Array:
        """Return the weights after each update, [M, K].

        `excesses` [M, K] are the excess losses at each step. The path begins at `start`, or at
        equal weights.
        """
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
        """Return the weights for the large model, [K]: the mean of the path."""
        return np.asarray(self.compute_path(excesses, start).mean(axis=0))


def compute_excess(
    proxy: Mapping[str, Sequence[float]], reference: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Return, for each domain, the mean of max(proxy - reference, 0) over the same tokens.

    Losses are clipped for each token, as in algorithm 1: a token that the proxy predicts better
    does not make up for another. Raises DataError if the two lists of a domain differ in length, or
    are empty.
    """
    excess = {}
    for domain, losses in proxy.items():
        other = reference.get(domain, ())
        if len(losses) != len(other) or not len(losses):
            raise DataError(
                f"DoReMi: domain '{domain}' has {len(losses)} losses of the proxy and {len(other)} "
                "of the reference; measure both on the same tokens"
            )
        excess[domain] = float(np.maximum(np.subtract(losses, other), 0).mean())
    return excess
