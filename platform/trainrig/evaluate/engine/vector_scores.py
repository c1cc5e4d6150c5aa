"""Scores of vectors: a logistic regression on them, and the ranks of relevant documents.

The regression is fitted by L-BFGS to its single minimum. Documents are ordered by the product of
their vectors with the query's.

Shapes: N rows, C channels, K classes, Q queries, D documents, R documents relevant to one query.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from trainrig.corpus.array_types import Float32s, Float64s
from trainrig.tokens.permutation import Integers

Floats = Float64s
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


QUERIES = 64  # number of queries whose products are in memory at once
NDCG_AT = 10


def compute_ranks(
    queries_QC: Float32s, documents_DC: Float32s, wanted: Sequence[Integers]
) -> list[Integers]:
    """Return the ranks [R], from 1, of each query's relevant documents.

    `wanted` has the indices of the relevant documents of each query. Among documents with equal
    products, the one with the lower index comes first.
    """
    found: list[Integers] = []
    for begin in range(0, len(queries_QC), QUERIES):
        products_QD = queries_QC[begin : begin + QUERIES] @ documents_DC.T
        for products_D, numbers_R in zip(products_QD, wanted[begin : begin + QUERIES], strict=True):
            own_R = products_D[numbers_R]
            above_R = (products_D[None] > own_R[:, None]).sum(1)
            equal_RD = products_D[None] == own_R[:, None]
            before_RD = np.arange(len(products_D))[None] < numbers_R[:, None]
            ranks_R: Integers = 1 + above_R + (equal_RD & before_RD).sum(1)
            found.append(ranks_R)
    return found


def score_ranks(
    ranks_R: Integers, grades_R: Sequence[float], at: Sequence[int]
) -> Mapping[str, float]:
    """Return the retrieval metrics of one query, by name.

    They are nDCG at 10 (Jarvelin and Kekalainen 2002, with linear gains as in trec_eval), the
    reciprocal rank of the first relevant document, and recall: the share of the relevant documents
    among the first K, for each K in `at`.
    """
    gains = np.asarray(grades_R, dtype=np.float64)
    near = ranks_R <= NDCG_AT
    reached = float((gains[near] / np.log2(ranks_R[near] + 1)).sum())
    best = sorted(gains.tolist(), reverse=True)[:NDCG_AT]
    ideal = sum(gain / math.log2(place + 2) for place, gain in enumerate(best))
    found = {f"ndcg@{NDCG_AT}": reached / ideal, "mrr": 1.0 / int(ranks_R.min())}
    return found | {f"recall@{k}": float((ranks_R <= k).mean()) for k in at}
