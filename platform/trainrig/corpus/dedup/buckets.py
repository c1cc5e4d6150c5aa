"""Candidate pairs: documents that share a band key, found a range of keys at a time.

Each task reads the entries whose keys fall into its range, wherever they came from, and sorts them;
no array is longer than its range holds. Which documents meet goes by the keys and the keep order
alone, so it does not show how the keys were divided.
"""

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compiled
from trainrig.corpus.dedup.names import like_keys, parts_of_keys
from trainrig.corpus.dedup.runs import Rows
from trainrig.corpus.dedup.shingles import mixed

FULL_BUCKET = 64  # documents; in a bucket of more, each meets the first so many and the one before

ENTRY = np.dtype([("key", "u8"), ("rank", "u8"), ("tie", "u8"), ("ref", "u8")])
CANDIDATE = np.dtype([("a", "u8"), ("b", "u8")])
_ENTRY_FIELDS = ENTRY.itemsize // 8  # compiled loops see rows as numbers

_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd


def entries(
    keys: NDArray[np.uint64],
    ranks: NDArray[np.uint64],
    ids: NDArray[np.uint64],
    refs: NDArray[np.uint64],
    parts: int,
) -> tuple[Rows, NDArray[np.int64]]:
    """One for each band of each document; grouped by ranges of keys, and where each begins.

    Args:
        keys: [documents, bands]
        ranks, refs: [documents]
        ids: [documents, 2]
        parts: into how many ranges all keys are cut.
    """
    part_of = parts_of_keys(keys, parts)
    starts = np.zeros(parts + 1, np.int64)
    np.cumsum(np.bincount(part_of.reshape(-1), minlength=parts), out=starts[1:])
    rows = np.empty((keys.size, _ENTRY_FIELDS), np.uint64)
    _write_entries(keys, ranks, ids, refs, part_of, starts.copy(), rows)
    return rows.reshape(-1).view(ENTRY), starts


@compiled
def _write_entries(
    keys: NDArray[np.uint64],
    ranks: NDArray[np.uint64],
    ids: NDArray[np.uint64],
    refs: NDArray[np.uint64],
    part_of: NDArray[np.int64],
    free: NDArray[np.int64],
    rows: NDArray[np.uint64],
) -> None:
    for document in range(len(keys)):
        rank, tie, ref = ranks[document], ids[document, 0], refs[document]
        for band in range(keys.shape[1]):
            part = part_of[document, band]
            row = free[part]
            free[part] += 1
            rows[row, 0], rows[row, 1] = keys[document, band], rank
            rows[row, 2], rows[row, 3] = tie, ref


def candidates(rows: Rows, full_bucket: int = FULL_BUCKET) -> Rows:
    """Pairs of documents that share a key, in order, each once, the lower ref first.

    In a bucket each document meets the first `full_bucket` before it in the keep order, and the
    last before it: all pairs of a small bucket, linearly many of a large one. A large bucket's
    other pairs are lost, but a document alike to many is nearly always alike to one of the first.
    """
    shared, bucket = like_keys(np.ascontiguousarray(rows["key"]))
    sizes = np.bincount(bucket)
    ends = np.cumsum(sizes)
    rows = np.take(rows, shared)
    _into_keep_order(rows.view(np.uint64).reshape(-1, _ENTRY_FIELDS), ends)
    few = np.minimum(sizes, full_bucket + 1)
    most = int((few * (few - 1) // 2 + (sizes - few) * (full_bucket + 1)).sum())
    pairs = np.empty((most, 2), np.uint64)
    # Rows of no pair: no document meets itself.
    seen = np.zeros((1 << max(0, most - 1).bit_length(), 2), np.uint64)
    found = _meet(np.ascontiguousarray(rows["ref"]), ends, full_bucket, seen, pairs)
    return once(pairs[:found].reshape(-1).view(CANDIDATE))


@compiled
def _into_keep_order(rows: NDArray[np.uint64], ends: NDArray[np.int64]) -> None:
    """Sort the entries of each bucket by all but their key (Shell's sort: most are of two)."""
    begin = 0
    for end in ends:
        gap = end - begin
        while gap > 1:
            gap = max(1, gap * 5 // 11)  # Gonnet and Baeza-Yates, Handbook of Algorithms, 1991
            for place in range(begin + gap, end):
                key, rank, tie, ref = rows[place]
                at = place
                while at >= begin + gap and _is_before(rank, tie, ref, rows[at - gap]):
                    rows[at] = rows[at - gap]
                    at -= gap
                rows[at, 0], rows[at, 1], rows[at, 2], rows[at, 3] = key, rank, tie, ref
        begin = end


@compiled
def _is_before(rank: np.uint64, tie: np.uint64, ref: np.uint64, row: NDArray[np.uint64]) -> bool:
    if rank != row[1]:
        return bool(rank < row[1])
    return bool(tie < row[2] or (tie == row[2] and ref < row[3]))


@compiled
def _meet(
    refs: NDArray[np.uint64],
    ends: NDArray[np.int64],
    full_bucket: int,
    seen: NDArray[np.uint64],
    pairs: NDArray[np.uint64],
) -> int:
    """Write the pairs that meet, bucket by bucket; how many.

    Seldom one twice, though texts that are alike share many keys: `seen`, of a power of two rows,
    holds the last pair that came to each row of it.
    """
    number, begin = 0, 0
    for end in ends:
        for later in range(begin, end):
            firsts = min(later - begin, full_bucket)
            for nth in range(firsts + (later - begin > full_bucket)):
                earlier = begin + nth if nth < firsts else later - 1
                one, other = refs[earlier], refs[later]
                low, high = min(one, other), max(one, other)
                row = seen[np.int64(mixed(low * _STEP + high) & np.uint64(len(seen) - 1))]
                if low == high or (row[0] == low and row[1] == high):
                    continue
                row[0], row[1] = low, high
                pairs[number, 0], pairs[number, 1] = low, high
                number += 1
        begin = end
    return number


def once(pairs: Rows) -> Rows:
    """`pairs` in order, each once."""
    pairs = np.take(pairs, np.lexsort((pairs["b"], pairs["a"])))
    fresh = np.ones(len(pairs), bool)
    fresh[1:] = (pairs["a"][1:] != pairs["a"][:-1]) | (pairs["b"][1:] != pairs["b"][:-1])
    return np.compress(fresh, pairs)
