"""Likelihoods of labels that are leaves of a Huffman tree (fastText's hierarchical softmax)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil

_FLOOR = 1e-5  # fastText adds this to each factor before it takes logarithms


class LabelTree(NamedTuple):
    """Nodes of the tree: leaves are the labels, 0 to L - 1; then inner nodes, the root last."""

    left: NDArray[np.int64]  # [2L - 1]; -1 at leaves
    right: NDArray[np.int64]


def build_label_tree(counts: Sequence[int]) -> LabelTree:
    """Build the Huffman tree of labels with these descending `counts`."""
    leaves = len(counts)
    weights = [*counts, *[0] * (leaves - 1)]
    tree = LabelTree(np.full(len(weights), -1, np.int64), np.full(len(weights), -1, np.int64))
    # the lightest leaf and the lightest inner node not joined yet
    leaf = leaves - 1
    inner = leaves
    for node in range(leaves, len(weights)):
        joined = []
        for _ in range(2):
            # Ties go to the inner node, or to the leaf if there is no inner node yet.
            if leaf >= 0 and (inner == node or weights[leaf] < weights[inner]):
                joined.append(leaf)
                leaf -= 1
            else:
                joined.append(inner)
                inner += 1
        tree.left[node], tree.right[node] = joined
        weights[node] = weights[joined[0]] + weights[joined[1]]
    return tree


@compile_nogil
def find_likeliest(
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    output: NDArray[np.float32],
    vector: NDArray[np.float32],
    likelihoods: NDArray[np.float64],
) -> int:
    """Return the most likely label of `vector`; fill `likelihoods` [2L - 1] of all nodes."""
    leaves = (len(left) + 1) // 2
    root = len(left) - 1
    likelihoods[root] = 1.0
    for node in range(root, leaves - 1, -1):  # parents before children
        score = np.float32(0.0)
        for channel in range(len(vector)):
            score += output[node - leaves, channel] * vector[channel]
        rightward = 1.0 / (1.0 + np.exp(-np.float64(score)))
        likelihoods[left[node]] = likelihoods[node] * (1.0 - rightward + _FLOOR)
        likelihoods[right[node]] = likelihoods[node] * (rightward + _FLOOR)
    best = 0
    for label in range(leaves):
        if likelihoods[label] > likelihoods[best]:
            best = label
    return best
