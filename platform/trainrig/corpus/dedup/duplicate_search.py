"""A search for duplicates: its settings, the plan of its tasks, and the files of its passes.

There are two divisions: *partitions*, which are runs of split indexes, for tasks that hold
documents, and *parts*, which are ranges of keys, for tasks that hold entries of equal keys. Both
depend only on counts and the memory budget, and no result depends on them.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trainrig.corpus.array_types import Bools, UInt64s
from trainrig.corpus.dedup import dedup_decisions, document_refs
from trainrig.corpus.dedup.candidates import ENTRY, MOST_CANDIDATES
from trainrig.corpus.dedup.dedup_decisions import keep_order
from trainrig.corpus.dedup.keep_rules import KeepRule
from trainrig.corpus.dedup.sorted_runs import Rows, Run, RunPart, read_part, write_run, writing_run
from trainrig.corpus.signatures.minhash import MinHash
from trainrig.corpus.signatures.shingle_similarity import Verification
from trainrig.splits import Task

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


def plan_partitions(
    split_indexes: Sequence[document_refs.SplitIndex], bands: int, memory: int
) -> PartitionPlan:
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


def _estimate_bytes(split_index: document_refs.SplitIndex, bands: int) -> int:
    own = max(bands * _BYTES_OF_ENTRY, MOST_CANDIDATES * _BYTES_OF_PAIR) + _BYTES_OF_DOCUMENT
    return split_index.count * own + split_index.shingles * _BYTES_OF_SHINGLE


Kind = Literal["url", "text"]


@dataclass(frozen=True)
class DuplicateSearch:
    """Settings, documents and intermediate files of a search for duplicates."""

    split_indexes: tuple[document_refs.SplitIndex, ...]  # split indexes of this run first
    plan: PartitionPlan
    minhash: MinHash
    verification: Verification
    keep: KeepRule
    urls: bool  # true if documents with the same URL are duplicates
    drops_all_copies: bool  # true if no document stays that has an equal or similar one
    path_of: Callable[..., str]  # builder of a file's path, from folder names and file name

    @property
    def floor(self) -> float:
        """The similarity from which on pairs are stored."""
        return min(self.verification.evidence_floor, self.minhash.threshold)

    @property
    def partitions(self) -> range:
        """The numbers of the tasks over documents."""
        return range(len(self.plan.partitions))

    @property
    def parts(self) -> range:
        """The numbers of the tasks over keys."""
        return range(self.plan.parts)

    def read_order(self, split_index: document_refs.SplitIndex) -> tuple[UInt64s, UInt64s]:
        """Return the ranks and ids of the documents of a split index."""
        return keep_order(split_index, self.keep)

    def list_runs(self, name: str, tasks: range) -> list[str]:
        """Return the paths of the runs that the pass `name` wrote."""
        return [self.path_of(name, f"{number:05d}.run") for number in tasks]

    def find_part(self, name: str, tasks: range, number: int, kind: np.dtype[Any]) -> RunPart:
        """Locate part `number` of the runs that the pass `name` wrote."""
        return RunPart.of(self.list_runs(name, tasks), number, kind)

    def writing(self, name: str, task: Task) -> contextlib.AbstractContextManager[Run]:
        """Open a run for writing whose parts are partitions."""
        path = self.path_of(name, f"{task['number']:05d}.run")
        return writing_run(path, len(self.partitions))

    def write(self, name: str, task: Task, rows: Rows, by: UInt64s) -> None:
        """Write a run whose parts are the partitions of the refs `by`."""
        partition_of = self.plan.find_partition(len(self.split_indexes))
        with self.writing(name, task) as run:
            run.add(rows, partition_of[document_refs.find_splits(by)])

    def write_by_key(self, name: str, task: Task, rows: Rows) -> None:
        """Write a run whose parts are ranges of the rows' keys."""
        path = self.path_of(name, f"{task['number']:05d}.run")
        write_run(
            path, rows, document_refs.assign_parts(rows["key"], len(self.parts)), len(self.parts)
        )

    def read_own_repeats(self, kind: Kind, partition: int) -> Rows:
        """Read the repeats whose first is in the same partition; the first may be a repeat."""
        path = self.list_runs(f"{kind}-own-repeats", self.partitions)[partition]
        return read_part([path], partition, dedup_decisions.REPEAT)

    def read_repeats(self, kind: Kind, partition: int) -> UInt64s:
        """Return the refs of all repeats in a partition."""
        paths = self.list_runs(f"{kind}-repeats-by-ref", self.parts)
        elsewhere = read_part(paths, partition, dedup_decisions.REPEAT)
        return np.concatenate([elsewhere["ref"], self.read_own_repeats(kind, partition)["ref"]])

    def compute_ref_bounds(self, partition: int) -> UInt64s:
        """Return the first ref of a partition and the ref after its last."""
        return document_refs.make_refs(
            np.array(self.plan.partitions[partition]), np.zeros(2, np.int64)
        )

    def list_own_indexes(self, partition: int) -> Iterator[tuple[int, document_refs.SplitIndex]]:
        """Yield the split indexes of a partition, with their numbers."""
        for number in range(*self.plan.partitions[partition]):
            yield number, self.split_indexes[number]


def mark_absent(refs: UInt64s, number: int, split_index: document_refs.SplitIndex) -> Bools:
    """Return whether each document of split index `number` is absent from `refs` (in any order)."""
    absent = np.ones(split_index.count, bool)
    absent[document_refs.find_positions(refs[document_refs.find_splits(refs) == number])] = False
    return absent
