"""Boosted decision trees in whole-number arithmetic: identical results on every machine.

Shapes: N blocks, F features, C features that any tree tests, T trees, M tests of all trees.

A tree is a set of tests `feature > bound`, and the leaves from left to right. A block starts with
all leaves; each test that holds removes the leaves of its left side, and the first leaf that
remains is the one that a descent from the root would reach. So tests can be made in any order: all
tests of one feature together, in the order of their bounds, for many blocks at once, which a
processor does with eight or more blocks an instruction (QuickScorer: Lucchese et al. 2015, "A fast
algorithm to rank documents with additive ensembles of regression trees").
"""

import functools
import importlib.resources
import io
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.array_types import Int32s, Int64s
from trainrig.corpus.compiled import compile_kernel

LEAF: Final = -1  # marks a leaf in place of a feature
SCALE: Final = 10_000  # factor of the leaf values: a sum of 10,000 is a log-odds of 1
MOST_LEAVES: Final = 32  # A set of leaves is a number of 32 bits.
# Blocks that are scored together: the sets of leaves of 150 trees take 38 kB then.
_TOGETHER: Final = 64

# The place of the lowest bit of a number of 32 bits, by the top five bits of its product with
# this number, in which each run of five bits occurs once.
_LOWEST_BIT: Final = 0x077CB531
_PLACES: Final = np.zeros(MOST_LEAVES, np.int64)
for _place in range(MOST_LEAVES):
    _PLACES[((_LOWEST_BIT << _place) & 0xFFFFFFFF) >> 27] = _place


@dataclass(frozen=True)
class Trees:
    """Trees as lists of tests, by feature, and of leaves."""

    features: Int32s  # [C]
    starts: Int32s  # [C + 1]: the tests of each feature
    bounds: Int32s  # [M], ascending for each feature
    trees: Int32s  # [M]
    masks: Int32s  # [M]: the leaves that remain if the feature exceeds the bound
    leaves: Int32s  # [T, MOST_LEAVES]: values, from left to right

    @classmethod
    def of(
        cls, roots: Int32s, features: NDArray[np.int16], values: Int32s, left: Int32s
    ) -> "Trees":
        """Build the trees from a file's arrays; the right child of a node follows the left.

        Where `features` is LEAF, `values` is the value of the leaf; elsewhere it is the bound.
        """
        leaves = np.zeros((len(roots), MOST_LEAVES), np.int32)
        tests: list[tuple[int, int, int, int]] = []
        for tree, root in enumerate(roots.tolist()):
            found: list[int] = []  # values of the leaves

            def visit(node: int, tree: int, found: list[int]) -> None:
                if features[node] == LEAF:
                    found.append(int(values[node]))
                    return
                first = len(found)
                visit(int(left[node]), tree, found)
                removed = (1 << len(found)) - (1 << first)
                tests.append((int(features[node]), int(values[node]), tree, ~removed))
                visit(int(left[node]) + 1, tree, found)

            visit(root, tree, found)
            assert len(found) <= MOST_LEAVES
            leaves[tree, : len(found)] = found
        tests.sort()
        columns = np.array(tests, np.int64).reshape(-1, 4).T
        used, starts = np.unique(columns[0], return_index=True)
        return cls(
            used.astype(np.int32),
            np.append(starts, len(tests)).astype(np.int32),
            columns[1].astype(np.int32),
            columns[2].astype(np.int32),
            columns[3].astype(np.uint32).view(np.int32),
            leaves,
        )

    def compute_odds(self, features: Int32s) -> Int32s:
        """Compute the log-odds, times SCALE, of [N, F] features: [N]."""
        result = np.zeros(len(features), np.int32)
        left = np.empty((len(self.leaves), _TOGETHER), np.int32)
        column = np.empty(_TOGETHER, np.int32)
        for start in range(0, len(features), _TOGETHER):
            rows = features[start : start + _TOGETHER]
            odds = result[start : start + _TOGETHER]
            remove_leaves(
                rows, self.features, self.starts, self.bounds, self.trees, self.masks, column, left
            )
            add_leaves(self.leaves, left, _PLACES, odds)
        return result


@compile_kernel
def remove_leaves(
    rows: Int32s,
    features: Int32s,
    starts: Int32s,
    bounds: Int32s,
    trees: Int32s,
    masks: Int32s,
    column: Int32s,
    left: Int32s,
) -> None:
    """Fill `left`, [T, blocks], with the sets of leaves that remain after all tests of `rows`."""
    left[:] = -1
    column[:] = 0
    for c in range(len(features)):
        feature = features[c]
        most = rows[0, feature]
        for k in range(len(rows)):
            column[k] = rows[k, feature]
            most = max(most, column[k])
        for test in range(starts[c], starts[c + 1]):
            bound = bounds[test]
            if bound >= most:
                break
            remaining = left[trees[test]]
            mask = masks[test]
            for k in range(_TOGETHER):
                remaining[k] &= mask if column[k] > bound else -1


@compile_kernel
def add_leaves(leaves: Int32s, left: Int32s, places: Int64s, result: Int32s) -> None:
    """Add the value of the first remaining leaf of each tree to `result`."""
    for tree in range(len(leaves)):
        for k in range(len(result)):
            remaining = left[tree, k]
            lowest = (remaining & -remaining) & 0xFFFFFFFF
            result[k] += leaves[tree, places[(lowest * _LOWEST_BIT & 0xFFFFFFFF) >> 27]]


@functools.cache
def load() -> Trees:
    """Load the trees shipped in this folder."""
    packed = (importlib.resources.files(__package__) / "block_trees.npz").read_bytes()
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        return Trees.of(*(arrays[key] for key in ("roots", "features", "values", "left")))
