"""Files of records by key, where keys are 64 random bits, with counts merged across splits.

Each file is sorted. So a range of keys can be read from all files, merged and decided in bounded
memory, by any worker. The number of ranges does not change the result.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trainrig.corpus.dedup import sliced_file
from trainrig.corpus.dedup.sliced_file import Records

SLICES = 1024  # slices of a file, by the highest 10 bits of the keys: an index of 8 KiB
_KEYS_A_SLICE = 2**64 // SLICES


def save(path: str, records: Records) -> None:
    """Write records sorted by their field `key`, which holds 64 random bits."""
    heads = np.arange(1, SLICES, dtype=np.uint64) * np.uint64(_KEYS_A_SLICE)
    inner = np.searchsorted(records["key"], heads)
    sliced_file.save(path, records, np.array([0, *inner, len(records)], np.int64))


def load(paths: Sequence[str], dtype: DTypeLike, part: int, parts: int) -> Records:
    """Read the records of all files whose key is in range `part` of `parts` equal ranges.

    They are returned file after file, each in its own order. Raises ValueError for more than SLICES
    parts.
    """
    if not 0 <= part < parts <= SLICES:
        raise ValueError(
            f"part {part} of {parts} does not exist: keys have at most {SLICES} ranges"
        )
    first = part * SLICES // parts
    end = (part + 1) * SLICES // parts
    found = [sliced_file.load(path, dtype, first, end) for path in paths]
    return np.concatenate([np.empty(0, dtype), *found])


def find(keys: NDArray[np.uint64], paths: Sequence[str], dtype: DTypeLike) -> Iterator[Records]:
    """Yield, for each file, the record of each of `keys`, or a record with key 0 if it has none.

    Only one file is in memory at a time. A key 0 is never found.
    """
    for path in paths:
        records = sliced_file.load(path, dtype, 0, SLICES)
        found = np.zeros(len(keys), dtype)
        if len(records):
            held = np.ascontiguousarray(records["key"])
            places = np.minimum(np.searchsorted(held, keys), len(held) - 1)
            there = held[places] == keys
            found[there] = records[places[there]]
        yield found


def choose_part_count(records: int, dtype: DTypeLike, memory: int) -> int:
    """Return the number of key ranges for `records` records, at `memory` bytes per range.

    Sorting takes two copies, and an index of 8 bytes per record.
    """
    needed = records * (2 * np.dtype(dtype).itemsize + 8)
    return int(min(SLICES, max(1, -(-needed // memory))))


def merge_records(records: Records) -> Records:
    """Merge records of equal keys, sorted by key: sum `count`, and keep the lowest `first`.

    Any other field is taken from a record with the lowest `first`, or from any record of the key if
    there is no field `first`.
    """
    if not len(records):
        return records
    keys = np.ascontiguousarray(records["key"])
    names = records.dtype.names or ()
    order = np.lexsort((records["first"], keys)) if "first" in names else np.argsort(keys)
    keys = keys[order]
    heads = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    found: Records = records[order[heads]]
    found["count"] = np.add.reduceat(records["count"][order], heads)
    return found
