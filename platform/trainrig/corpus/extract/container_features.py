"""Features of the elements around a block: how much text they hold, and of which sort.

Shapes: N blocks of a page, C containers (elements that may hold blocks), in the order of the page.
A *prose-like* block is long, has few links and ends as a sentence does.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.extract.page_blocks import CHARACTERS, LINK_CHARACTERS

LEVELS: Final = 3  # number of enclosing containers that have separate features
_LEVEL_FEATURES: Final = 6
CONTAINER_FEATURES: Final = LEVELS * _LEVEL_FEATURES + 4
_MOST_SIBLINGS: Final = 50

# Sums over a container: blocks, characters, characters in links, characters in prose-like blocks,
# and the number of prose-like blocks.
_BLOCKS, _CHARACTERS, _LINKED, _PROSE, _PROSE_BLOCKS, _SUMS = range(6)


@compile_nogil
def sum_containers(
    numbers: NDArray[np.int32],
    good: NDArray[np.bool_],
    container: NDArray[np.int64],
    containers: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return [C, sums] over all blocks inside each container."""
    sums = np.zeros((len(containers), _SUMS), np.int64)
    for i in range(len(numbers)):
        row = sums[container[i]]
        row[_BLOCKS] += 1
        row[_CHARACTERS] += numbers[i, CHARACTERS]
        row[_LINKED] += numbers[i, LINK_CHARACTERS]
        if good[i]:
            row[_PROSE] += numbers[i, CHARACTERS]
            row[_PROSE_BLOCKS] += 1
    for c in range(len(containers) - 1, 0, -1):
        around = containers[c, 0]
        for k in range(_SUMS):
            sums[around, k] += sums[c, k]
    return sums


@compile_nogil
def count_siblings(containers: NDArray[np.int64], sums: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return [C] the number of containers with text, parent and signature of each container."""
    keys = np.empty(len(containers), np.int64)
    for c in range(len(containers)):
        keys[c] = (containers[c, 1] ^ (containers[c, 0] * 0x9E3779B1)) if sums[c, _BLOCKS] else c
    order = np.argsort(keys)
    siblings = np.zeros(len(containers), np.int64)
    i = 0
    while i < len(order):
        j = i
        while j < len(order) and keys[order[j]] == keys[order[i]]:
            j += 1
        for k in range(i, j):
            siblings[order[k]] = min(j - i, _MOST_SIBLINGS)
        i = j
    return siblings


@compile_nogil
def _compute_share(part: int, whole: int) -> int:
    return 1000 * part // whole if whole > 0 else 0


@compile_nogil
def fill_container_features(
    numbers: NDArray[np.int32],
    good: NDArray[np.bool_],
    container: NDArray[np.int64],
    containers: NDArray[np.int64],
    first: int,
    result: NDArray[np.int32],
) -> None:
    """Write CONTAINER_FEATURES columns of `result`, from column `first`, for each block."""
    sums = sum_containers(numbers, good, container, containers)
    siblings = count_siblings(containers, sums)
    all_prose = sums[0, _PROSE]
    before = -1
    for i in range(len(numbers)):
        out = result[i]
        if container[i] == before:
            out[first : first + CONTAINER_FEATURES] = result[
                i - 1, first : first + CONTAINER_FEATURES
            ]
            continue
        before = container[i]
        c = before
        column = first
        climbed = 0
        level = 0
        most = 0  # siblings
        half = -1  # levels up to a container with half of the page's prose
        while True:
            if level < LEVELS:
                out[column] = min(sums[c, _CHARACTERS], 1_000_000)
                out[column + 1] = _compute_share(sums[c, _LINKED], sums[c, _CHARACTERS])
                out[column + 2] = _compute_share(sums[c, _PROSE], all_prose)
                out[column + 3] = sums[c, _BLOCKS]
                out[column + 4] = _compute_share(sums[c, _PROSE], sums[c, _CHARACTERS])
                column += _LEVEL_FEATURES
            if half < 0 and 2 * sums[c, _PROSE] >= all_prose:
                half = level
                out[first + LEVELS * _LEVEL_FEATURES] = level
                out[first + LEVELS * _LEVEL_FEATURES + 1] = _compute_share(
                    sums[c, _LINKED], sums[c, _CHARACTERS]
                )
                out[first + LEVELS * _LEVEL_FEATURES + 2] = _compute_share(
                    sums[c, _CHARACTERS], sums[0, _CHARACTERS]
                )
            if c == 0 or (half >= 0 and level >= LEVELS):
                break
            # The next container that holds more blocks; those between have the same text.
            blocks = sums[c, _BLOCKS]
            most = siblings[c]
            while c and sums[c, _BLOCKS] == blocks:
                most = max(most, siblings[c])
                c = containers[c, 0]
                climbed += 1
            if level < LEVELS:
                out[column - 1] = most
            level += 1
        out[first + LEVELS * _LEVEL_FEATURES + 3] = climbed
