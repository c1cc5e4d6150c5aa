"""Boosted trees in whole numbers: the same answer on every machine, to the last bit.

Shapes: N blocks, F features, T trees, M nodes of all trees.
"""

import functools
import importlib.resources
import io
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compiled

LEAF: Final = -1  # in place of a feature
SCALE: Final = 10_000  # of the leaves: a sum of 10,000 is a log-odds of 1

Name = Literal["main", "whole"]


@dataclass(frozen=True)
class Trees:
    """Trees as flat arrays; the right child of a node stands beside the left."""

    roots: NDArray[np.int32]  # [T]
    features: NDArray[np.int16]  # [M], LEAF for a leaf
    values: NDArray[np.int32]  # [M]: left if the feature is at most this; of a leaf, what it adds
    left: NDArray[np.int32]  # [M]

    def odds(self, features: NDArray[np.int32]) -> NDArray[np.int32]:
        """[N] log-odds, times SCALE, for [N, F] features."""
        result = np.zeros(len(features), np.int32)
        add_up(features, self.roots, self.features, self.values, self.left, result)
        return result


@compiled
def add_up(
    rows: NDArray[np.int32],
    roots: NDArray[np.int32],
    features: NDArray[np.int16],
    values: NDArray[np.int32],
    left: NDArray[np.int32],
    result: NDArray[np.int32],
) -> None:
    """Add the leaf that each of `rows` falls into, in every tree, to `result`."""
    for tree in range(len(roots)):
        for i in range(len(rows)):
            node = roots[tree]
            while features[node] != LEAF:
                step = 0 if rows[i, features[node]] <= values[node] else 1
                node = left[node] + step
            result[i] += values[node]


@functools.cache
def load(name: Name) -> Trees:
    """The trees shipped in this folder: for resiliparse's main content, or for whole pages."""
    packed = (importlib.resources.files(__package__) / f"{name}.npz").read_bytes()
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        return Trees(*(arrays[key] for key in ("roots", "features", "values", "left")))
