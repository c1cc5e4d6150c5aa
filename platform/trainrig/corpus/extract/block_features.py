"""Features of a block and its neighbours: the inputs of the decision trees.

Shapes: N blocks of a page, in order. All features are whole numbers; shares are in thousandths. A
*prose-like* block ("good") is long, has few links and ends as a sentence does. Its *topics* count
its words that menus, adverts and so on use (`blocks.TOPICS`).
"""

from typing import Final

import numpy as np

from trainrig.corpus.array_types import Int32s, Int64s, UInt64s
from trainrig.corpus.compiled import compile_kernel
from trainrig.corpus.extract.container_features import (
    CONTAINER_FEATURES,
    count_key,
    create_container_sums,
    create_table,
    fill_container_features,
)
from trainrig.corpus.extract.page_blocks import (
    CHARACTERS,
    ENDS_SENTENCE,
    FIRST_TOPIC,
    KIND,
    LINK_CHARACTERS,
    TITLE_WORDS,
    WIDTH,
    WORDS,
    PageBlocks,
)
from trainrig.corpus.page_walk.page_elements import (
    ANCESTRY_BITS,
    FIRST_ANCESTRY,
    LANDMARK_BITS,
    WORD_BITS,
)
from trainrig.corpus.page_walk.page_text import H1, H6

FAR: Final = 60  # largest distance, in blocks; larger ones are set to this
_REACH: Final = 3  # neighbours on each side that have separate features
_AROUND: Final = 5  # neighbours on each side whose features are summed
_NEIGHBOUR_FEATURES: Final = 5  # features of each separate neighbour
_CONTEXT_FEATURES: Final = 27  # features of the surroundings and the page; see `fill`
_FIRST_CONTEXT: Final = WIDTH + 3 + 2 * _REACH * _NEIGHBOUR_FEATURES
_FIRST_CONTAINER: Final = _FIRST_CONTEXT + _CONTEXT_FEATURES
_FIRST_FLAG: Final = _FIRST_CONTAINER + CONTAINER_FEATURES
FEATURES: Final = _FIRST_FLAG + ANCESTRY_BITS + WORD_BITS

# Numbers about the blocks before the features are computed. A difference of two entries of a sum
# over the blocks before each block is the sum over the blocks between.
(
    _SIZE,  # characters before each block
    _LINKED,  # characters in links before each block
    _PROSE,  # characters in prose-like blocks before each block
    _GOOD_BLOCKS,  # prose-like blocks before each block
    _TOPICS,  # words of any topic in each block
    _GOOD,  # 1 for a prose-like block
    _NEXT_GOOD,  # distance to the next prose-like block, at most FAR
    _NEXT_HEADING,  # index of the next heading, N where none follows
    _REPEATS,  # number of blocks with the words of each block
    _SUMS,
) = range(10)


def compute_features(blocks: PageBlocks) -> Int32s:
    """Compute the features of one page's blocks, [N, FEATURES]."""
    count = len(blocks.numbers)
    result = np.zeros((count, FEATURES), np.int32)
    if count:
        work = np.zeros((_SUMS, count + 1), np.int64)
        count_repeats(blocks.digests, create_table(count), work)
        fill_sums(blocks.numbers, work)
        fill_container_features(
            blocks.numbers,
            work[_GOOD],
            blocks.container,
            blocks.containers,
            *create_container_sums(len(blocks.containers)),
            _FIRST_CONTAINER,
            result,
        )
        fill(blocks.numbers, work, result)
        fill_flags(blocks.flags, blocks.near, result)
    return result


@compile_kernel
def _compute_share(part: int, whole: int) -> int:
    return 1000 * part // whole if whole > 0 else 0


@compile_kernel
def count_repeats(digests: UInt64s, table: Int64s, work: Int64s) -> None:
    """Count the blocks with the words of each block, itself included."""
    for i in range(len(digests)):
        work[_REPEATS, i] = count_key(int(np.int64(digests[i])), table)
    for i in range(len(digests)):
        work[_REPEATS, i] = table[work[_REPEATS, i], 1]


@compile_kernel
def _find_title(numbers: Int32s) -> int:
    """Return the first heading whose words are mostly in the page's title, or -1."""
    for i in range(len(numbers)):
        row = numbers[i]
        is_heading = H1 <= row[KIND] <= H6
        if is_heading and row[WORDS] > 1 and 10 * row[TITLE_WORDS] >= 6 * row[WORDS]:
            return i
    return -1


@compile_kernel
def fill_sums(numbers: Int32s, work: Int64s) -> None:
    """Fill `work`, [_SUMS, N + 1], for the blocks of a page."""
    n = len(numbers)
    for i in range(n):
        row = numbers[i]
        characters = int(row[CHARACTERS])
        link_share = _compute_share(int(row[LINK_CHARACTERS]), characters)
        good = characters > 80 and link_share < 350 and row[ENDS_SENTENCE] == 1
        work[_GOOD, i] = good
        work[_GOOD_BLOCKS, i + 1] = work[_GOOD_BLOCKS, i] + good
        work[_SIZE, i + 1] = work[_SIZE, i] + characters
        work[_LINKED, i + 1] = work[_LINKED, i] + row[LINK_CHARACTERS]
        work[_PROSE, i + 1] = work[_PROSE, i] + characters * good
        for topic in range(FIRST_TOPIC, WIDTH):
            work[_TOPICS, i] += row[topic]
    distance = FAR
    heading_at = n
    for i in range(n - 1, -1, -1):
        work[_NEXT_GOOD, i] = distance
        work[_NEXT_HEADING, i] = heading_at
        distance = 1 if work[_GOOD, i] else min(FAR, distance + 1)
        if H1 <= numbers[i, KIND] <= H6:
            heading_at = i


@compile_kernel
def _write_neighbours(i: int, numbers: Int32s, topics: Int64s, result: Int32s) -> None:
    """Write the features of each neighbour of block `i`.

    The link shares of blocks before `i` are read from `result`, so they must be filled already.
    """
    n = len(numbers)
    out = result[i]
    column = WIDTH + 3
    for step in range(-_REACH, _REACH + 1):
        if step == 0:
            continue
        j = i + step
        if 0 <= j < n:
            out[column] = numbers[j, KIND]
            out[column + 1] = numbers[j, CHARACTERS]
            out[column + 2] = (
                result[j, WIDTH]
                if j < i
                else _compute_share(int(numbers[j, LINK_CHARACTERS]), int(numbers[j, CHARACTERS]))
            )
            out[column + 3] = numbers[j, ENDS_SENTENCE]
            out[column + 4] = topics[j]
        else:
            out[column] = -1
        column += _NEIGHBOUR_FEATURES


@compile_kernel
def fill(numbers: Int32s, work: Int64s, result: Int32s) -> None:
    """Write the features of all blocks of a page into `result`."""
    n = len(numbers)
    size = work[_SIZE]
    linked = work[_LINKED]
    prose = work[_PROSE]
    topics = work[_TOPICS]
    title = _find_title(numbers)
    good_blocks = max(1, work[_GOOD_BLOCKS, n])
    distance = FAR  # distance back to the last prose-like block
    heading = -1  # index of the last heading
    run = 0  # consecutive blocks of the same kind, up to this one
    for i in range(n):
        row = numbers[i]
        out = result[i]
        for number in range(WIDTH):
            out[number] = row[number]
        out[WIDTH] = _compute_share(int(row[LINK_CHARACTERS]), int(row[CHARACTERS]))
        out[WIDTH + 1] = _compute_share(int(row[TITLE_WORDS]), int(row[WORDS]))
        out[WIDTH + 2] = topics[i]
        _write_neighbours(i, numbers, topics, result)
        column = _FIRST_CONTEXT
        if H1 <= row[KIND] <= H6:
            heading = i
        run = run + 1 if i and numbers[i - 1, KIND] == row[KIND] else 1
        low = max(0, i - _AROUND)
        high = min(n, i + _AROUND + 1)
        out[column] = size[high] - size[low]
        out[column + 1] = _compute_share(linked[high] - linked[low], size[high] - size[low])
        out[column + 2] = prose[high] - prose[low]
        out[column + 3] = _compute_share(prose[i], prose[n])
        out[column + 4] = _compute_share(prose[n] - prose[i + 1], prose[n])
        out[column + 5] = distance
        out[column + 6] = work[_NEXT_GOOD, i]
        out[column + 7] = min(i, 1000)
        out[column + 8] = min(n - 1 - i, 1000)
        out[column + 9] = _compute_share(size[i], size[n])
        out[column + 10] = n
        out[column + 11] = size[n]
        out[column + 12] = prose[n]
        out[column + 13] = _compute_share(linked[n], size[n])
        out[column + 14] = work[_REPEATS, i]
        out[column + 15] = FAR if title < 0 else max(-FAR, min(FAR, i - title))
        out[column + 16] = run
        first = max(heading, 0)
        last = work[_NEXT_HEADING, i]
        out[column + 17] = FAR if heading < 0 else min(FAR, i - heading)
        out[column + 18] = min(FAR, last - i)
        out[column + 19] = size[last] - size[first]
        out[column + 20] = _compute_share(linked[last] - linked[first], size[last] - size[first])
        out[column + 21] = prose[last] - prose[first]
        if heading >= 0:
            out[column + 22] = numbers[heading, KIND]
            out[column + 23] = numbers[heading, CHARACTERS]
            out[column + 24] = topics[heading]
            out[column + 25] = numbers[heading, LINK_CHARACTERS]
        out[column + 26] = prose[n] // good_blocks
        distance = 1 if work[_GOOD, i] else min(FAR, distance + 1)


@compile_kernel
def fill_flags(flags: Int64s, near: Int64s, result: Int32s) -> None:
    """Write the flags of the elements around each block, then the words of the nearest ones."""
    for i in range(len(flags)):
        out = result[i]
        for bit in range(ANCESTRY_BITS):
            out[_FIRST_FLAG + bit] = (flags[i] >> (FIRST_ANCESTRY + bit)) & 1
        for bit in range(WORD_BITS):
            out[_FIRST_FLAG + ANCESTRY_BITS + bit] = (
                near[i] >> (FIRST_ANCESTRY + LANDMARK_BITS + bit)
            ) & 1
