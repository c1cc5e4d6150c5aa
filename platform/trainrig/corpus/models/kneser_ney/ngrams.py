"""n-grams of word ids packed into pairs of 64-bit keys, which sort as numbers.

Shapes: M n-grams, n words in each. A key holds three ids of 21 bits, the first in the highest bits.
Words 0, 1 and 2 are `<unk>`, `<s>` and `</s>`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil

UNKNOWN = 0
BEGIN = 1
END = 2
SPECIAL = ("<unk>", "<s>", "</s>")
BITS = 21  # bits of an id
IDS_PER_KEY = 3
LONGEST = 2 * IDS_PER_KEY  # words
MOST_WORDS = 2**BITS  # size of a vocabulary

Ids = NDArray[np.uint32]
Keys = NDArray[np.uint64]
Counts = NDArray[np.int64]


class NgramKeys(NamedTuple):
    """Sort keys of n-grams: `high_M` is compared first, `low_M` breaks ties."""

    high_M: Keys
    low_M: Keys


def pack(words_nM: Ids) -> NgramKeys:
    """Pack n-grams into keys that sort by the first word, then the next, and so on."""
    none = np.zeros(words_nM.shape[1], np.uint64)
    padded = [*words_nM, *[none] * (LONGEST - len(words_nM))]
    return NgramKeys(_pack_words(padded[:IDS_PER_KEY]), _pack_words(padded[IDS_PER_KEY:]))


def _pack_words(words: list[Ids]) -> Keys:
    key = words[0].astype(np.uint64)
    for word in words[1:]:
        key = key << np.uint64(BITS) | word.astype(np.uint64)
    return key


def unpack(keys: NgramKeys, order: int) -> Ids:
    """Unpack keys into the words [n, M] of n-grams of `order` words."""
    mask = np.uint64(MOST_WORDS - 1)
    words = np.empty((order, len(keys.high_M)), np.uint32)
    for place in range(order):
        key = keys.high_M if place < IDS_PER_KEY else keys.low_M
        shift = BITS * (IDS_PER_KEY - 1 - place % IDS_PER_KEY)
        words[place] = (key >> np.uint64(shift)) & mask
    return words


def sort_places(keys: NgramKeys) -> NDArray[np.int64]:
    """Return the order that sorts the n-grams."""
    return np.lexsort((keys.low_M, keys.high_M))


def find_contexts(words_nM: Ids, below_nM: Ids) -> NDArray[np.int64]:
    """Return the index in `below_nM` of each n-gram without its last word; both must be sorted.

    `below_nM` must contain every such context.
    """
    contexts = words_nM[:-1]
    new = np.ones(contexts.shape[1], np.bool_)
    new[1:] = (contexts[:, 1:] != contexts[:, :-1]).any(axis=0)
    places = _find_n_grams(np.ascontiguousarray(contexts[:, new]), np.ascontiguousarray(below_nM))
    found: NDArray[np.int64] = places[np.cumsum(new) - 1]
    return found


@compile_nogil
def _find_n_grams(wanted_nM: Ids, there_nM: Ids) -> NDArray[np.int64]:
    order, count = wanted_nM.shape
    found = np.empty(count, np.int64)
    place = 0
    for number in range(count):
        row = 0
        while row < order:
            if wanted_nM[row, number] == there_nM[row, place]:
                row += 1
            else:
                place += 1
                row = 0
        found[number] = place
    return found
