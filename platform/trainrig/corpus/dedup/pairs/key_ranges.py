"""Candidates of key ranges with more entries than a task may hold, processed in several turns.

Keys are digests, so ranges have about the same size, except for keys shared by many documents.
"""

import functools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.pairs import buckets
from trainrig.corpus.dedup.pairs.document_reference import BINS, assign_bins
from trainrig.corpus.dedup.pairs.partition_plan import cut_partitions
from trainrig.corpus.dedup.pairs.sorted_runs import Rows, RunPart


def iterate_candidates(
    entries: RunPart, parts: int, most: int, earlier: int | None
) -> Iterator[Rows]:
    """Yield the candidates of one of `parts` key ranges, holding at most `most` entries."""
    if entries.count <= most:
        yield from buckets.iterate_candidates(entries.read(), earlier)
        return
    counts = np.zeros(BINS, np.int64)
    for rows in entries.iterate_pieces():
        counts += np.bincount(assign_bins(rows["key"], parts), minlength=BINS)
    for first, end in cut_partitions(counts.tolist(), most):
        in_bins = functools.partial(_iterate_bins, entries, parts, first, end)
        giants = _find_giants(in_bins(), most) if end == first + 1 else np.empty(0, np.uint64)
        rest = [rows[~np.isin(rows["key"], giants)] for rows in in_bins()]
        yield from buckets.iterate_candidates(np.concatenate(rest), earlier)
        for key in giants:
            yield from buckets.iterate_candidates_of_one_key(
                functools.partial(_select_key, in_bins, key), earlier
            )


def _iterate_bins(entries: RunPart, parts: int, first: int, end: int) -> Iterator[Rows]:
    """Yield the entries of some bins of a range in pieces, at least one."""
    yield np.empty(0, buckets.ENTRY)
    for rows in entries.iterate_pieces():
        bins = assign_bins(rows["key"], parts)
        yield np.compress((first <= bins) & (bins < end), rows)


def _find_giants(pieces: Iterator[Rows], most: int) -> NDArray[np.uint64]:
    """Return the keys that have more than half as many entries as may be held."""
    keys = np.empty(0, np.uint64)
    counts = np.empty(0, np.int64)
    for rows in pieces:
        more, numbers = np.unique(rows["key"], return_counts=True)
        keys, nth = np.unique(np.concatenate([keys, more]), return_inverse=True)
        counts = np.bincount(nth, np.concatenate([counts, numbers]), len(keys)).astype(np.int64)
    return keys[counts > most // 2]


def _select_key(pieces: Callable[[], Iterator[Rows]], key: np.uint64) -> Iterator[Rows]:
    for rows in pieces():
        yield np.compress(rows["key"] == key, rows)
