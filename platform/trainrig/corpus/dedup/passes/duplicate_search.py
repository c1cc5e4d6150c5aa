"""A search for duplicates: its settings, and the files through which its passes communicate."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.decisions.documents import keep_order
from trainrig.corpus.dedup.decisions.keep import KeepRule
from trainrig.corpus.dedup.pairs import equals
from trainrig.corpus.dedup.pairs.document_reference import (
    SplitIndex,
    assign_parts,
    find_positions,
    find_splits,
    make_refs,
)
from trainrig.corpus.dedup.pairs.partition_plan import PartitionPlan
from trainrig.corpus.dedup.pairs.sorted_runs import (
    Rows,
    Run,
    RunPart,
    read_part,
    write_run,
    writing_run,
)
from trainrig.corpus.dedup.pairs.verify import Verification
from trainrig.corpus.dedup.signatures.minhash import MinHash
from trainrig.splits import Task

Kind = Literal["url", "text"]


@dataclass(frozen=True)
class DuplicateSearch:
    """Settings, documents and intermediate files of a search for duplicates."""

    split_indexes: tuple[SplitIndex, ...]  # split indexes of this run first
    plan: PartitionPlan
    minhash: MinHash
    verification: Verification
    keep: KeepRule
    urls: bool  # true if documents with the same URL are duplicates
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

    def read_order(self, split_index: SplitIndex) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
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

    def write(self, name: str, task: Task, rows: Rows, by: NDArray[np.uint64]) -> None:
        """Write a run whose parts are the partitions of the refs `by`."""
        partition_of = self.plan.find_partition(len(self.split_indexes))
        with self.writing(name, task) as run:
            run.add(rows, partition_of[find_splits(by)])

    def write_by_key(self, name: str, task: Task, rows: Rows) -> None:
        """Write a run whose parts are ranges of the rows' keys."""
        path = self.path_of(name, f"{task['number']:05d}.run")
        write_run(path, rows, assign_parts(rows["key"], len(self.parts)), len(self.parts))

    def read_own_repeats(self, kind: Kind, partition: int) -> Rows:
        """Read the repeats whose first is in the same partition; the first may be a repeat."""
        path = self.list_runs(f"{kind}-own-repeats", self.partitions)[partition]
        return read_part([path], partition, equals.REPEAT)

    def read_repeats(self, kind: Kind, partition: int) -> NDArray[np.uint64]:
        """Return the refs of all repeats in a partition."""
        paths = self.list_runs(f"{kind}-repeats-by-ref", self.parts)
        elsewhere = read_part(paths, partition, equals.REPEAT)
        return np.concatenate([elsewhere["ref"], self.read_own_repeats(kind, partition)["ref"]])

    def compute_ref_bounds(self, partition: int) -> NDArray[np.uint64]:
        """Return the first ref of a partition and the ref after its last."""
        return make_refs(np.array(self.plan.partitions[partition]), np.zeros(2, np.int64))

    def list_own_indexes(self, partition: int) -> Iterator[tuple[int, SplitIndex]]:
        """Yield the split indexes of a partition, with their numbers."""
        for number in range(*self.plan.partitions[partition]):
            yield number, self.split_indexes[number]


def mark_absent(
    refs: NDArray[np.uint64], number: int, split_index: SplitIndex
) -> NDArray[np.bool_]:
    """Return whether each document of split index `number` is absent from `refs` (in any order)."""
    absent = np.ones(split_index.count, bool)
    absent[find_positions(refs[find_splits(refs) == number])] = False
    return absent
