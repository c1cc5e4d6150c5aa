"""Which band keys more than one document has, found from keys alone, a range of them at a time.

Most documents are like no other, and most of their keys are theirs alone. A key is a quarter of an
entry: what its document goes by is written once that is known, and for those that are shared.
"""

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compiled
from trainrig.corpus.dedup.buckets import ENTRY
from trainrig.corpus.dedup.names import may_be_shared
from trainrig.corpus.dedup.runs import Rows

KEY = np.dtype("u8")
SHARED = np.dtype("?")

_ENTRY_FIELDS = ENTRY.itemsize // 8  # compiled loops see rows as numbers
_OTHER_BITS = 26  # from which on a key is looked at again


def keys_by_part(
    keys: NDArray[np.uint64], parts: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """`keys` [documents, bands] as `parts` ranges, and where each begins.

    Within a range they stand in the order of documents.
    """
    starts = _starts(keys, np.uint64(parts))
    found = np.empty(keys.size, KEY)
    _group(keys, np.uint64(parts), starts.copy(), found)
    return found, starts


def shared(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """[keys] whether another is the same; of one in thirty that is alone it is said, too."""
    found = may_be_shared(keys)
    some = np.flatnonzero(found)
    found[some] = may_be_shared(np.take(keys, some), _OTHER_BITS)
    return found


def entries(
    keys: NDArray[np.uint64],
    ranks: NDArray[np.uint64],
    ids: NDArray[np.uint64],
    refs: NDArray[np.uint64],
    parts: int,
    wanted: NDArray[np.bool_],
) -> tuple[Rows, NDArray[np.int64]]:
    """Those of each document for its keys that are wanted, as ranges, and where each begins.

    Args:
        keys: [documents, bands]
        ranks, refs: [documents]
        ids: [documents, 2]
        parts: into how many ranges all keys are cut.
        wanted: [documents x bands] in the order of `keys_by_part`.
    """
    starts = _starts(keys, np.uint64(parts))
    wanted_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(wanted)])
    starts_of_rows = wanted_before[starts]
    rows = np.empty((starts_of_rows[-1], _ENTRY_FIELDS), np.uint64)
    places = np.stack([starts, starts_of_rows])
    _write_entries(keys, ranks, ids, refs, np.uint64(parts), wanted, places, rows)
    return rows.reshape(-1).view(ENTRY), starts_of_rows


@compiled
def _starts(keys: NDArray[np.uint64], parts: np.uint64) -> NDArray[np.int64]:
    starts = np.zeros(parts + np.uint64(1), np.int64)
    for document in range(keys.shape[0]):
        for band in range(keys.shape[1]):
            starts[_part(keys[document, band], parts) + np.uint64(1)] += 1
    return np.cumsum(starts)


@compiled
def _group(
    keys: NDArray[np.uint64],
    parts: np.uint64,
    free: NDArray[np.int64],
    found: NDArray[np.uint64],
) -> None:
    for document in range(keys.shape[0]):
        for band in range(keys.shape[1]):
            key = keys[document, band]
            part = _part(key, parts)
            found[free[part]] = key
            free[part] += 1


@compiled
def _write_entries(
    keys: NDArray[np.uint64],
    ranks: NDArray[np.uint64],
    ids: NDArray[np.uint64],
    refs: NDArray[np.uint64],
    parts: np.uint64,
    wanted: NDArray[np.bool_],
    places: NDArray[np.int64],
    rows: NDArray[np.uint64],
) -> None:
    """`places` [2, parts]: the next key of each, and its next entry."""
    for document in range(keys.shape[0]):
        rank, tie, ref = ranks[document], ids[document, 0], refs[document]
        for band in range(keys.shape[1]):
            key = keys[document, band]
            part = _part(key, parts)
            place = places[0, part]
            places[0, part] += 1
            if wanted[place]:
                row = places[1, part]
                places[1, part] += 1
                rows[row, 0], rows[row, 1], rows[row, 2], rows[row, 3] = key, rank, tie, ref


@compiled
def _part(key: np.uint64, parts: np.uint64) -> np.uint64:
    """As `names.parts_of_keys` has it."""
    return (key >> np.uint64(32)) * parts >> np.uint64(32)
