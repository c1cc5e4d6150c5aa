"""Ranks of relevant documents, with all documents ordered by the product of vectors.

Shapes: Q queries, D documents, C channels, R documents relevant to one query.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trainrig.tokens.permutation import Integers

QUERIES = 64  # number of queries whose products are in memory at once
NDCG_AT = 10


def compute_ranks(
    queries_QC: NDArray[np.float32],
    documents_DC: NDArray[np.float32],
    wanted: Sequence[Integers],
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
