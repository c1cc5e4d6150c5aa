"""Suffix arrays over token ids: sorting, and searches by compiled code.

The suffix array of N ids lists the positions 0 to N - 1 in the order of the sequences that begin
there; a sequence that ends earlier comes first. All positions of an n-gram are adjacent, so two
binary searches count it (Liu et al. 2024, arXiv:2401.17377).

The ids have a separator after each document, which is no id of the vocabulary. So no n-gram without
the separator crosses the end of a document.

`heads` [vocabulary + 2]: entry t is the number of positions whose id is below t. It limits each
search to the positions that begin with the right id.

Shapes: N ids of a partition, T ids of a query.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.errors import DataError

Ids = NDArray[np.unsignedinteger[Any]]
Places = NDArray[np.uint32]
Heads = NDArray[np.int64]
Lengths = NDArray[np.int64]
LONG_MATCH = 64  # ids of a match after which bisection is cheaper than a search a position


def choose_dtype(vocabulary: int) -> np.dtype[Any]:
    """Return the dtype of the ids of a partition, which must hold the separator as well."""
    return np.dtype("<u2" if vocabulary < 2**16 else "<u4")


def sort_suffixes(ids: Ids) -> Places:
    """Return the suffix array of `ids` [N].

    The ids are sorted as big-endian bytes by divsufsort, in time O(N log N) for any text: the order
    of the bytes from an id's first byte on is the order of the ids. Takes 14 bytes of memory for a
    token with ids of 16 bits, and 21 with wider ones. Raises DataError for more than 2^31 - 1
    bytes.
    """
    import pydivsufsort  # imported here: slow to import, and searches do not need it

    width = 2 if ids.dtype.itemsize == 2 else 3 if not len(ids) or ids.max() < 2**24 else 4
    if len(ids) * width >= 2**31:
        raise DataError(
            f"a partition has {len(ids):,} tokens of {width} bytes, but at most 2,147,483,647 "
            "bytes can be sorted; lower `partition_tokens`, or split the longest document"
        )
    if not len(ids):
        return np.empty(0, np.uint32)
    data = np.empty((len(ids), width), np.uint8)
    for byte in range(width):
        data[:, byte] = (ids >> (8 * (width - 1 - byte))) & 0xFF
    order: NDArray[np.int32] = pydivsufsort.divsufsort(data.reshape(-1))
    _keep_whole_ids(order, width)
    return order[: len(ids)].view(np.uint32)


@compile_nogil
def _keep_whole_ids(order: NDArray[np.int32], width: int) -> None:
    """Move the positions of first bytes to the front of `order`, in order and counted in ids."""
    kept = 0
    for rank in range(len(order)):
        place = order[rank]
        if place % width == 0:
            order[kept] = place // width
            kept += 1


def count_heads(ids: Ids, vocabulary: int) -> Heads:
    """Return `heads` [vocabulary + 2] of the ids of a partition, separators included."""
    counts = np.zeros(vocabulary + 1, np.int64)
    for begin in range(0, len(ids), 2**22):  # bincount converts its argument to 8 bytes an id
        counts += np.bincount(ids[begin : begin + 2**22], minlength=vocabulary + 1)
    return np.concatenate([[0], np.cumsum(counts)])


@compile_nogil
def join_documents(ids: Ids, begins: Lengths, separator: int, out: Ids) -> None:
    """Copy documents to `out`, with a separator after each.

    `begins` [documents + 1] are the positions in `ids` at which documents begin, and the last end.
    """
    at = 0
    for document in range(len(begins) - 1):
        for place in range(begins[document], begins[document + 1]):
            out[at] = ids[place]
            at += 1
        out[at] = separator
        at += 1


@compile_nogil
def find_range(ids: Ids, order: Places, heads: Heads, query: Lengths) -> tuple[int, int]:
    """Return the first and the past rank of the positions at which `query` [T] stands.

    They are equal if the query occurs nowhere. The empty query stands everywhere.
    """
    if len(query) == 0:
        return 0, len(order)
    low = heads[query[0]]
    high = heads[query[0] + 1]
    first = low
    past = high
    while first < past:  # first rank whose sequence is not below the query
        middle = (first + past) // 2
        if _compare(ids, order[middle], query) < 0:
            first = middle + 1
        else:
            past = middle
    begin = first
    past = high
    while first < past:  # first rank whose sequence is above the query and does not begin with it
        middle = (first + past) // 2
        if _compare(ids, order[middle], query) <= 0:
            first = middle + 1
        else:
            past = middle
    return begin, first


@compile_nogil
def _compare(ids: Ids, place: int, query: Lengths) -> int:
    """Return -1, 0 or 1: the ids from `place` on are below, begin with, or are above the query."""
    length = min(len(query), len(ids) - place)
    for offset in range(length):
        here = np.int64(ids[place + offset])
        if here != query[offset]:
            return -1 if here < query[offset] else 1
    return -1 if length < len(query) else 0


@compile_nogil
def find_match_lengths(ids: Ids, order: Places, heads: Heads, query: Lengths) -> Lengths:
    """Return [T] the most ids from each position of `query` on that stand together in `ids`.

    One search a position. After a long match, the matches that end at the same place are not
    searched for: the first longer-reaching one is found by bisection. So the time does not grow
    with the square of the length of a match.
    """
    found = np.zeros(len(query), np.int64)
    begin = 0
    while begin < len(query):
        length = _find_match_length(ids, order, heads, query[begin:])
        found[begin] = length
        past = begin + length  # no match from `begin` on reaches further
        begin += 1
        if length < LONG_MATCH:
            continue
        longer = len(query) if past == len(query) else past
        low = begin  # first position from which a match may reach further than `past`
        middle = low  # among repeats, often the next position
        while past < len(query) and low < longer:
            if _find_match_length(ids, order, heads, query[middle : past + 1]) > past - middle:
                longer = middle
            else:
                low = middle + 1
            middle = (low + longer) // 2
        for place in range(begin, longer):
            found[place] = past - place
        begin = longer
    return found


@compile_nogil
def _find_match_length(ids: Ids, order: Places, heads: Heads, query: Lengths) -> int:
    """Return the most ids from the first of `query` on that stand together in `ids`.

    One binary search: the neighbours of the place where the query would be sorted share most with
    it, and the search compares with both.
    """
    low = heads[query[0]]
    high = heads[query[0] + 1]
    shared_low = 0  # ids that the query shares with the rank before `low`
    shared_high = 0  # and with the rank at `high`
    longest = 0
    while low < high:
        middle = (low + high) // 2
        place: Any = np.int64(order[middle])
        shared: int = min(shared_low, shared_high)  # all ranks between share as much
        rest = len(ids) - place
        most = min(len(query), rest)
        while shared < most and np.int64(ids[place + shared]) == query[shared]:
            shared += 1
        longest = max(longest, shared)
        if shared == len(query):
            break
        if shared == rest or np.int64(ids[place + shared]) < query[shared]:
            low = middle + 1
            shared_low = shared
        else:
            high = middle
            shared_high = shared
    return longest


@compile_nogil
def count_next(
    ids: Ids, order: Places, first: int, past: int, length: int, counts: Lengths
) -> None:
    """Add to `counts` [vocabulary + 1] how often each id follows an n-gram of `length` ids.

    `first` and `past` are the ranks of the n-gram. Ranks of one following id are adjacent, so the
    time grows with the number of different ids, not of occurrences.
    """
    while first < past:
        token = ids[order[first] + length]
        low = first + 1
        high = past
        while low < high:
            middle = (low + high) // 2
            if ids[order[middle] + length] <= token:
                low = middle + 1
            else:
                high = middle
        counts[token] += low - first
        first = low
