"""Band keys that more than one document has, found from keys alone, in ranges.

Most documents resemble no other, and most of their keys are unique. So only 32 bits of each key are
written first, an eighth of an entry. Entries are written only for keys that are shared.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.dedup.pairs.buckets import ENTRY
from trainrig.corpus.dedup.pairs.document_reference import make_refs
from trainrig.corpus.dedup.pairs.key_filter import KeyFilter
from trainrig.corpus.dedup.pairs.sorted_runs import Rows, RunPart

KEY = np.dtype("u4")  # the low bits of a key; its range determines the high bits
SHARED = np.dtype("?")

_ENTRY_FIELDS = ENTRY.itemsize // 8  # compiled loops see rows as arrays of numbers
_SLOTS_A_KEY = 16


@dataclass(frozen=True)
class Searched:
    """Band keys of one split index, and the documents to search for."""

    split_index: int
    keys: NDArray[np.uint64]  # [documents, bands]
    wanted: NDArray[np.bool_]  # [documents]


def group_keys_by_part(
    split_indexes: Sequence[Searched], parts: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the KEYs of all wanted documents grouped by range, and the start of each range.

    Within a range they are in the order of documents.
    """
    starts = np.zeros(parts + 1, np.int64)
    for searched in split_indexes:
        _count(searched.keys, searched.wanted, starts[1:])
    np.cumsum(starts, out=starts)
    found = np.empty(starts[-1], KEY)
    free = starts.copy()
    for searched in split_indexes:
        _group(searched.keys, searched.wanted, np.uint64(parts), free, found)
    return found, starts


def mark_shared(keys: RunPart, distinct: int) -> Iterator[NDArray[np.bool_]]:
    """Yield a mask of the keys that occur more than once, for each piece of KEYs.

    About 5% of unique keys are marked as well. Memory is four to eight bytes for each of
    `distinct`, the expected number of different keys, however many keys there are.
    """
    met = KeyFilter(min(keys.count, distinct), _SLOTS_A_KEY)
    for piece in keys.iterate_pieces():
        met.add(piece)
    for piece in keys.iterate_pieces():
        yield met.appears_again(piece)


def build_entries(
    split_indexes: Iterable[Searched],
    order: Callable[[int], tuple[NDArray[np.uint64], NDArray[np.uint64]]],
    shared: NDArray[np.bool_],
    counts: NDArray[np.int64],
) -> tuple[Rows, NDArray[np.int64]]:
    """Build an ENTRY for each shared key of a document, by range, and return each range's start.

    Args:
        split_indexes: the argument of `group_keys_by_part`.
        order: function that returns the ranks [documents] and ids [documents, 2] of a split index.
        shared: whether each key is shared, in the order of `group_keys_by_part`.
        counts: number of keys in each range.
    """
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    places = np.stack([starts, _find_shared_starts(shared, starts)])
    starts = places[1].copy()
    rows = np.empty((starts[-1], _ENTRY_FIELDS), np.uint64)
    for searched in split_indexes:
        ranks, ids = order(searched.split_index)
        first = make_refs(searched.split_index, np.zeros(1, np.int64))[0]
        of_split = searched.keys, searched.wanted, ranks, ids, first
        _write_entries(*of_split, np.uint64(len(counts)), shared, places, rows)
    return rows.reshape(-1).view(ENTRY), starts


@compile_nogil
def _count(keys: NDArray[np.uint64], wanted: NDArray[np.bool_], counts: NDArray[np.int64]) -> None:
    parts = np.uint64(len(counts))
    for document in range(len(keys)):
        if wanted[document]:
            for band in range(keys.shape[1]):
                counts[_assign_part(keys[document, band], parts)] += 1


@compile_nogil
def _group(
    keys: NDArray[np.uint64],
    wanted: NDArray[np.bool_],
    parts: np.uint64,
    free: NDArray[np.int64],
    found: NDArray[np.uint32],
) -> None:
    for document in range(len(keys)):
        if wanted[document]:
            for band in range(keys.shape[1]):
                key = keys[document, band]
                part = _assign_part(key, parts)
                found[free[part]] = np.uint32(key & np.uint64(2**32 - 1))
                free[part] += 1


@compile_nogil
def _find_shared_starts(shared: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    found = np.zeros(len(starts), np.int64)
    for part in range(len(starts) - 1):
        here = 0
        for place in range(starts[part], starts[part + 1]):
            here += int(shared[place])
        found[part + 1] = found[part] + here
    return found


@compile_nogil
def _write_entries(
    keys: NDArray[np.uint64],
    wanted: NDArray[np.bool_],
    ranks: NDArray[np.uint64],
    ids: NDArray[np.uint64],
    first: np.uint64,
    parts: np.uint64,
    shared: NDArray[np.bool_],
    places: NDArray[np.int64],
    rows: NDArray[np.uint64],
) -> None:
    """Write the entries of shared keys of one split index.

    `places` [2, parts] holds the next key and the next entry of each range, and is updated. `first`
    is the ref of the first document.
    """
    for document in range(len(keys)):
        if not wanted[document]:
            continue
        rank = ranks[document]
        tie = ids[document, 0]
        ref = first + np.uint64(document)
        for band in range(keys.shape[1]):
            key = keys[document, band]
            part = _assign_part(key, parts)
            place = places[0, part]
            places[0, part] += 1
            if shared[place]:
                row = places[1, part]
                places[1, part] += 1
                rows[row, 0] = key
                rows[row, 1] = rank
                rows[row, 2] = tie
                rows[row, 3] = ref


@compile_nogil
def _assign_part(key: np.uint64, parts: np.uint64) -> np.uint64:
    """Return the range of a key, as `document_reference.assign_parts` does."""
    return (key >> np.uint64(32)) * parts >> np.uint64(32)
