"""How the work is cut so that each task stays within its memory, and what memory that is.

Two cuts. *Partitions* of split indexes one after the other, for tasks that hold documents; *parts*
of the range of keys, for tasks that hold what shares a key. Both follow from counts and a budget
alone, and no result depends on either.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.corpus.dedup.pairs.buckets import ENTRY, MOST_CANDIDATES
from trainrig.corpus.dedup.pairs.document_reference import SplitIndex

MIB = 2**20
# Bytes a task holds for each: its rows as they are made or read, together, and in another order,
# and what orders them.
_BYTES_OF_ENTRY = 3 * ENTRY.itemsize + 4 * 8
_SHARED = 4  # of as many band keys one is shared at most, as a rule; else ranges take turns
_UNEVEN = 16  # ranges of keys hold as many but for so much
_BYTES_OF_TEXT = 4 * 48  # among equals, as rows are read, together, and in another order
_PARTS = 256  # at least, where there is so much work: smaller ones stay in caches
# A pair, its evidence or its edge, and the remote document that it may be with: as they are read,
# and in order. 160 were seen where nearly all are with remote documents.
_BYTES_OF_PAIR = 180
_BYTES_OF_DOCUMENT = 400  # its columns, and its rows among equals: 48 bytes, held as entries are
# mapped, copied together, and those of the other split index as it is mapped
_BYTES_OF_SHINGLE = 3 * 4
# A worker but for what it holds: Python, numpy, pyarrow, numba's compiler, some thousand pairs at a
# time, and what all of them have not given back.
PROCESS = 350 * MIB


@dataclass(frozen=True)
class PartitionPlan:
    """How many tasks, and of what."""

    partitions: tuple[tuple[int, int], ...]  # first split index, and the one after the last
    parts: int
    keys: int  # that a part has, where none is there many times
    entries: int  # that a task of a part holds at a time
    bytes: int  # what a worker holds at most, as estimated

    def find_partition(self, split_indexes: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The partition of each of so many split indexes."""
        lengths = [end - first for first, end in self.partitions]
        return np.repeat(np.arange(len(self.partitions)), lengths)[:split_indexes].astype(np.int64)


def plan(split_indexes: Sequence[SplitIndex], bands: int, memory: int) -> PartitionPlan:
    """Tasks of about `memory` bytes each. One split index may take more: its split is not cut."""
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
    """Partitions of neighbours that take `budget` together at most, or are one: first, and end."""
    partitions: list[tuple[int, int]] = []
    first, held = 0, 0
    for number, needed in enumerate(taken):
        if held and held + needed > budget:
            partitions.append((first, number))
            first, held = number, 0
        held += needed
    return [*partitions, (first, len(taken))]


def _estimate_bytes(split_index: SplitIndex, bands: int) -> int:
    own = max(bands * _BYTES_OF_ENTRY, MOST_CANDIDATES * _BYTES_OF_PAIR) + _BYTES_OF_DOCUMENT
    return split_index.count * own + split_index.shingles * _BYTES_OF_SHINGLE
