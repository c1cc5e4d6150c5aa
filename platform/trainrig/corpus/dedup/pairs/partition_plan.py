"""Plan of the partitions and key ranges that keep each task within its memory.

There are two divisions: *partitions*, which are runs of split indexes, for tasks that hold
documents, and *parts*, which are ranges of keys, for tasks that hold entries of equal keys. Both
depend only on counts and the memory budget, and no result depends on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.corpus.dedup.pairs.buckets import ENTRY, MOST_CANDIDATES
from trainrig.corpus.dedup.pairs.document_reference import SplitIndex

MIB = 2**20
# Bytes held per entry: its row as read, concatenated and sorted, and the sort index.
_BYTES_OF_ENTRY = 3 * ENTRY.itemsize + 4 * 8
# usually at most one of this many band keys is shared; otherwise ranges take several turns
_SHARED = 4
_UNEVEN = 16  # ranges of keys differ in size by at most one part in this many
_BYTES_OF_TEXT = 4 * 48  # rows of equal texts or URLs: as read, concatenated and sorted
_PARTS = 256  # least number of parts for large searches, because small parts fit in caches
# Bytes per pair: its row as read and sorted, the edge, and a possible remote document. 160 were
# measured where nearly all pairs are with remote documents.
_BYTES_OF_PAIR = 180
# bytes of its columns, and of its rows of 48 bytes in the search for equals
_BYTES_OF_DOCUMENT = 400
# mapped, copied together, and mapped again for the other split index
_BYTES_OF_SHINGLE = 3 * 4
# Bytes of a worker without its data: Python, numpy, pyarrow, numba's compiler, some thousand pairs,
# and memory that these libraries have not returned.
PROCESS = 350 * MIB


@dataclass(frozen=True)
class PartitionPlan:
    """Numbers and sizes of the tasks of a search for duplicates."""

    # first split index of each partition, and the one after its last
    partitions: tuple[tuple[int, int], ...]
    parts: int
    keys: int  # expected keys per part
    entries: int  # most entries that a task of a part holds at once
    bytes: int  # estimated maximum memory of a worker

    def find_partition(self, split_indexes: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the partition of each of the first `split_indexes` split indexes."""
        lengths = [end - first for first, end in self.partitions]
        return np.repeat(np.arange(len(self.partitions)), lengths)[:split_indexes].astype(np.int64)


def plan(split_indexes: Sequence[SplitIndex], bands: int, memory: int) -> PartitionPlan:
    """Plan tasks of about `memory` bytes each.

    A single split index may take more, because splits are not divided.
    """
    budget = max(memory - PROCESS, 16 * MIB)
    taken = [_estimate_bytes(split_index, bands) for split_index in split_indexes]
    partitions = cut_partitions(taken, budget)
    documents = sum(split_index.count for split_index in split_indexes)
    keys = bands * documents
    by_key = max(keys * _BYTES_OF_ENTRY // _SHARED, documents * _BYTES_OF_TEXT)
    parts = max(1, -(-by_key // budget), min(len(partitions), _PARTS))
    of_part = -(-keys // parts)
    of_part += of_part // _UNEVEN
    entries = min(of_part, budget // _BYTES_OF_ENTRY)
    most = max(sum(taken[first:end]) for first, end in partitions)
    held = max(most, by_key // parts, entries * _BYTES_OF_ENTRY)
    return PartitionPlan(tuple(partitions), parts, of_part, entries, PROCESS + held)


def cut_partitions(taken: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Group neighbours that together take at most `budget`, and return each group's first and end.

    A single element may take more.
    """
    partitions: list[tuple[int, int]] = []
    first = 0
    held = 0
    for number, needed in enumerate(taken):
        if held and held + needed > budget:
            partitions.append((first, number))
            first = number
            held = 0
        held += needed
    return [*partitions, (first, len(taken))]


def _estimate_bytes(split_index: SplitIndex, bands: int) -> int:
    own = max(bands * _BYTES_OF_ENTRY, MOST_CANDIDATES * _BYTES_OF_PAIR) + _BYTES_OF_DOCUMENT
    return split_index.count * own + split_index.shingles * _BYTES_OF_SHINGLE
