"""Files of records that splits leave for each other: in slices, by key, or as spans to remove.

Data that one split leaves for many readers is one file with a slice per reader, because a thousand
splits times a thousand ranges would be a million files. The file holds the number of slices, the
start of each (in records) and the end of all, then the records in little-endian memory layout.

Files by key have keys of 64 random bits, and are sorted by them. So a range of keys can be read
from all files, merged and decided in bounded memory, by any worker. The number of ranges does not
change the result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trainrig import storage
from trainrig.corpus.array_types import Int64s, UInt64s
from trainrig.corpus.removed_spans import RemovedSpan
from trainrig.errors import DataError

Records = NDArray[Any]


def save_slices(path: str, records: Records, bounds: Int64s) -> None:
    """Write `records`, with slice i from `bounds[i]` up to `bounds[i + 1]`."""
    with storage.atomic_file(path) as temporary, Path(temporary).open("wb") as file:
        np.array([len(bounds) - 1, *bounds], "<i8").tofile(file)
        np.ascontiguousarray(records).tofile(file)


def read_bounds(path: str) -> Int64s:
    """Read the start of each slice in records, followed by the number of records.

    Raises DataError if the file is cut short.
    """
    count = int(_read_records(path, "<i8", 0, 8)[0])
    return _read_records(path, "<i8", 8, 16 + 8 * count).astype(np.int64)


def load_slices(path: str, dtype: DTypeLike, first: int, end: int) -> Records:
    """Read the records of the slices `first` up to `end`.

    Raises DataError if the file is cut short.
    """
    count = int(_read_records(path, "<i8", 0, 8)[0])
    # All bounds of a file for 100,000 readers are 800 kB, which each of them would read.
    bounds = _read_records(path, "<i8", 8 + 8 * first, 16 + 8 * end)
    return load_records(path, dtype, count + 1, int(bounds[0]), int(bounds[-1]))


def load_records(path: str, dtype: DTypeLike, bounds: int, begin: int, end: int) -> Records:
    """Read the records `begin` up to `end` of a file with `bounds` bounds.

    Raises DataError if the file is cut short.
    """
    size = np.dtype(dtype).itemsize
    head = 8 * (bounds + 1)
    return _read_records(path, dtype, head + size * begin, head + size * end)


def _read_records(path: str, dtype: DTypeLike, begin: int, end: int) -> Records:
    data = storage.read_range(path, begin, end) if end > begin else b""
    if len(data) != end - begin:
        raise DataError(f"{path}: the file ends before byte {end:,}; delete it and run again")
    return np.frombuffer(data, dtype)


SLICES = 1024  # slices of a file, by the highest 10 bits of the keys: an index of 8 KiB
_KEYS_A_SLICE = 2**64 // SLICES


def save_by_key(path: str, records: Records) -> None:
    """Write records sorted by their field `key`, which holds 64 random bits."""
    heads = np.arange(1, SLICES, dtype=np.uint64) * np.uint64(_KEYS_A_SLICE)
    inner = np.searchsorted(records["key"], heads)
    save_slices(path, records, np.array([0, *inner, len(records)], np.int64))


def load_key_range(paths: Sequence[str], dtype: DTypeLike, part: int, parts: int) -> Records:
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
    found = [load_slices(path, dtype, first, end) for path in paths]
    return np.concatenate([np.empty(0, dtype), *found])


def find_keys(keys: UInt64s, paths: Sequence[str], dtype: DTypeLike) -> Iterator[Records]:
    """Yield, for each file, the record of each of `keys`, or a record with key 0 if it has none.

    Only one file is in memory at a time. A key 0 is never found.
    """
    for path in paths:
        records = load_slices(path, dtype, 0, SLICES)
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


_SPAN = np.dtype([("document", "<i8"), ("start", "<i8"), ("end", "<i8")])


@dataclass(frozen=True)
class RemovedSpans:
    """Spans of characters to remove, sorted by document and position."""

    documents: Int64s  # [spans] position of the document in the split
    starts: Int64s
    ends: Int64s


def save_spans(path: str, spans: RemovedSpans) -> None:
    """Write spans in the format that `load_spans` reads."""
    records = np.empty(len(spans.documents), _SPAN)
    records["document"] = spans.documents
    records["start"] = spans.starts
    records["end"] = spans.ends
    save_slices(path, records, np.array([0, len(records)], np.int64))


def load_spans(path: str, by: str) -> dict[int, list[RemovedSpan]]:
    """Read the spans at `path`, keyed by the document's position in the split."""
    cuts: dict[int, list[RemovedSpan]] = {}
    for document, start, end in load_slices(path, _SPAN, 0, 1).tolist():
        cuts.setdefault(document, []).append(RemovedSpan(start, end, by))
    return cuts
