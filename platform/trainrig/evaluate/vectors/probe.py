"""Logistic regression on vectors, fitted by L-BFGS to its single minimum.

Shapes: N rows, C channels, K classes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from trainrig.tokens.permutation import Integers

Floats = NDArray[np.float64]
TOLERANCE = 1e-8  # largest gradient at the minimum, for each row
MOST_STEPS = 10_000


@dataclass(frozen=True)
class LinearClassifier:
    """A linear classifier of vectors, with the mean and the scale of each channel."""

    weights_KC: Floats
    bias_K: Floats
    means_C: Floats
    scales_C: Floats

    def tell(self, vectors_NC: Floats) -> Integers:
        """Return the likeliest class of each row [N]; the first of equally likely classes."""
        scaled_NC = (vectors_NC - self.means_C) / self.scales_C
        predicted: Integers = (scaled_NC @ self.weights_KC.T + self.bias_K).argmax(1)
        return predicted


def fit_classifier(
    vectors_NC: Floats, classes_N: Integers, classes: int, penalty: float, standardise: bool
) -> LinearClassifier:
    """Fit a logistic regression with an L2 penalty on the weights, but not on the biases.

    The loss is the sum of the cross-entropies plus `penalty` / 2 times the squared weights. This is
    scikit-learn's LogisticRegression with C = 1 / `penalty`, or with 2 / `penalty` for two classes,
    where scikit-learn has a single vector of weights. The minimum is unique, and the search starts
    from zeros, so the result does not depend on a random seed.
    """
    rows, channels = vectors_NC.shape
    means_C = np.zeros(channels)
    scales_C = np.ones(channels)
    if standardise:
        means_C = vectors_NC.mean(0)
        spread_C = vectors_NC.std(0)
        scales_C = np.where(spread_C > 0, spread_C, 1.0)
    scaled_NC = (vectors_NC - means_C) / scales_C
    right_NK = np.eye(classes)[classes_N]

    def loss(flat: Floats) -> tuple[float, Floats]:
        weights_KC = flat[classes:].reshape(classes, channels)
        bias_K = flat[:classes]
        logits_NK = scaled_NC @ weights_KC.T + bias_K
        logs_NK = special.log_softmax(logits_NK, axis=1)
        value = -float((right_NK * logs_NK).sum()) + penalty / 2 * float((weights_KC**2).sum())
        off_NK = np.exp(logs_NK) - right_NK
        gradient_KC = off_NK.T @ scaled_NC + penalty * weights_KC
        return value, np.concatenate([off_NK.sum(0), gradient_KC.ravel()])

    options = {"maxiter": MOST_STEPS, "maxfun": 2 * MOST_STEPS, "gtol": TOLERANCE * rows, "ftol": 0}
    found = optimize.minimize(
        loss, np.zeros(classes * (channels + 1)), jac=True, method="L-BFGS-B", options=options
    )
    flat = np.asarray(found.x, dtype=np.float64)
    return LinearClassifier(
        flat[classes:].reshape(classes, channels), flat[:classes], means_C, scales_C
    )
