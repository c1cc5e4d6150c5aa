"""Features of the elements around a block: how much text they hold, and of which sort.

Shapes: N blocks of a page, C containers (elements that may hold blocks), in the order of the page.
A *prose-like* block is long, has few links and ends as a sentence does.
"""

from typing import Final

import numpy as np

from trainrig.corpus.array_types import Int32s, Int64s
from trainrig.corpus.compiled import compile_kernel
from trainrig.corpus.extract.page_blocks import CHARACTERS, LINK_CHARACTERS
from trainrig.corpus.page_walk.page_text import CONTAINER_AROUND, CONTAINER_SIGNATURE

LEVELS: Final = 3  # number of enclosing containers that have separate features
_LEVEL_FEATURES: Final = 6
CONTAINER_FEATURES: Final = LEVELS * _LEVEL_FEATURES + 4
_MOST_SIBLINGS: Final = 50

# Sums over a container: blocks, characters, characters in links, characters in prose-like blocks,
# and the number of prose-like blocks.
_BLOCKS, _CHARACTERS, _LINKED, _PROSE, _PROSE_BLOCKS, _SUMS = range(6)


def create_container_sums(containers: int) -> tuple[Int64s, Int64s, Int64s]:
    """Create the arrays that the features of this many containers are computed in.

    These are the sums, the places of the containers in the table of siblings, and that table, which
    has at least twice as many slots as there are containers.
    """
    return (
        np.zeros((containers, _SUMS), np.int64),
        np.zeros(containers, np.int64),
        create_table(containers),
    )


def create_table(keys: int) -> Int64s:
    """Create a hash table, key and count, with over twice as many slots as `keys`."""
    return np.zeros((1 << (2 * keys).bit_length(), 2), np.int64)


@compile_kernel
def count_key(key: int, table: Int64s) -> int:
    """Add one to the count of `key`; return its slot."""
    last = len(table) - 1
    slot = (key ^ (key >> 32)) & last
    while table[slot, 1] and table[slot, 0] != key:
        slot = (slot + 1) & last
    table[slot, 0] = key
    table[slot, 1] += 1
    return slot


@compile_kernel
def sum_containers(
    numbers: Int32s, good: Int64s, container: Int64s, containers: Int64s, sums: Int64s
) -> None:
    """Fill `sums` with the sums over all blocks inside each container."""
    for i in range(len(numbers)):
        row = sums[container[i]]
        row[_BLOCKS] += 1
        row[_CHARACTERS] += numbers[i, CHARACTERS]
        row[_LINKED] += numbers[i, LINK_CHARACTERS]
        if good[i]:
            row[_PROSE] += numbers[i, CHARACTERS]
            row[_PROSE_BLOCKS] += 1
    for c in range(len(containers) - 1, 0, -1):
        around = containers[c, CONTAINER_AROUND]
        for k in range(_SUMS):
            sums[around, k] += sums[c, k]


@compile_kernel
def count_siblings(containers: Int64s, sums: Int64s, slots: Int64s, table: Int64s) -> None:
    """Count the containers with text, parent and signature of each container that has text.

    The count is in the second column of `table`, at the container's place in `slots`.
    """
    for c in range(len(containers)):
        if sums[c, _BLOCKS]:
            slots[c] = count_key(
                containers[c, CONTAINER_SIGNATURE] ^ (containers[c, CONTAINER_AROUND] * 0x9E3779B1),
                table,
            )


@compile_kernel
def _compute_share(part: int, whole: int) -> int:
    return 1000 * part // whole if whole > 0 else 0


@compile_kernel
def fill_container_features(
    numbers: Int32s,
    good: Int64s,
    container: Int64s,
    containers: Int64s,
    sums: Int64s,
    slots: Int64s,
    table: Int64s,
    first: int,
    result: Int32s,
) -> None:
    """Write CONTAINER_FEATURES columns of `result`, from column `first`, for each block.

    `sums`, `slots` and `table` are new from `create_container_sums`.
    """
    sum_containers(numbers, good, container, containers, sums)
    count_siblings(containers, sums, slots, table)
    all_prose = sums[0, _PROSE]
    before = -1
    for i in range(len(numbers)):
        out = result[i]
        if container[i] == before:
            for column in range(first, first + CONTAINER_FEATURES):
                out[column] = result[i - 1, column]
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
            most = 0
            while c and sums[c, _BLOCKS] == blocks:
                most = max(most, min(table[slots[c], 1], _MOST_SIBLINGS))
                c = containers[c, CONTAINER_AROUND]
                climbed += 1
            if level < LEVELS:
                out[column - 1] = most
            level += 1
        out[first + LEVELS * _LEVEL_FEATURES + 3] = climbed
