"""Boosted decision trees in whole-number arithmetic: identical results on every machine.

Shapes: N blocks, F features, T trees, M nodes of all trees.
"""

import functools
import importlib.resources
import io
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil

LEAF: Final = -1  # marks a leaf in place of a feature
SCALE: Final = 10_000  # factor of the leaf values: a sum of 10,000 is a log-odds of 1


@dataclass(frozen=True)
class Trees:
    """Trees as flat arrays; the right child of a node follows the left.

    A leaf is its own left child and no feature exceeds its bound, so a block that reaches a leaf
    stays there. All blocks descend a tree together, for as many steps as its deepest leaf needs.
    This avoids mispredicted branches and saves two fifths of the time.
    """

    roots: NDArray[np.int32]  # [T]
    depths: NDArray[np.int32]  # [T]: steps to the deepest leaf
    features: NDArray[np.int16]  # [M]
    bounds: NDArray[np.int32]  # [M]: left if the feature is at most this
    left: NDArray[np.int32]  # [M]
    leaves: NDArray[np.int32]  # value that a leaf adds; 0 for other nodes

    @classmethod
    def of(
        cls,
        roots: NDArray[np.int32],
        features: NDArray[np.int16],
        values: NDArray[np.int32],
        left: NDArray[np.int32],
    ) -> "Trees":
        """Build the trees from a file's arrays.

        Where `features` is LEAF, `values` is the value of the leaf; elsewhere it is the bound.
        """
        is_leaf = features == LEAF
        places = np.arange(len(features), dtype=np.int32)
        depths = np.empty(len(roots), np.int32)
        measure(roots, is_leaf, left, depths)
        return cls(
            roots,
            depths,
            np.where(is_leaf, 0, features).astype(np.int16),
            np.where(is_leaf, np.iinfo(np.int32).max, values).astype(np.int32),
            np.where(is_leaf, places, left).astype(np.int32),
            np.where(is_leaf, values, 0).astype(np.int32),
        )

    def compute_odds(self, features: NDArray[np.int32]) -> NDArray[np.int32]:
        """Compute the log-odds, times SCALE, of [N, F] features: [N]."""
        result = np.zeros(len(features), np.int32)
        add_up(
            features,
            self.roots,
            self.depths,
            self.features,
            self.bounds,
            self.left,
            self.leaves,
            result,
        )
        return result


def measure(
    roots: NDArray[np.int32],
    is_leaf: NDArray[np.bool_],
    left: NDArray[np.int32],
    depths: NDArray[np.int32],
) -> None:
    """Fill `depths` with the depth of each tree."""
    for tree, root in enumerate(roots.tolist()):
        level = [root]
        depth = 0
        while level := [left[n] + side for n in level if not is_leaf[n] for side in (0, 1)]:
            depth += 1
        depths[tree] = depth


@compile_nogil
def add_up(
    rows: NDArray[np.int32],
    roots: NDArray[np.int32],
    depths: NDArray[np.int32],
    features: NDArray[np.int16],
    bounds: NDArray[np.int32],
    left: NDArray[np.int32],
    leaves: NDArray[np.int32],
    result: NDArray[np.int32],
) -> None:
    """Add the value of the leaf that each row reaches, in every tree, to `result`."""
    nodes = np.empty(len(rows), np.int32)
    for tree in range(len(roots)):
        nodes[:] = roots[tree]
        for _ in range(depths[tree]):
            for i in range(len(rows)):
                node = nodes[i]
                nodes[i] = left[node] + (rows[i, features[node]] > bounds[node])
        for i in range(len(rows)):
            result[i] += leaves[nodes[i]]


@functools.cache
def load() -> Trees:
    """Load the trees shipped in this folder."""
    packed = (importlib.resources.files(__package__) / "block_trees.npz").read_bytes()
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        return Trees.of(*(arrays[key] for key in ("roots", "features", "values", "left")))
