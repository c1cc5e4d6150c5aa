"""Rows of whole documents with target weights, such as conversations; they are never cut.

A plan, made when conversations are tokenized, says which documents share a row (packed by
best_fit.py in blocks, like web documents). Without a plan each document has its own row. The first
id of a document is never a target, whatever precedes it in the row. So, with position ids that
restart at each document, a row trains the same as its documents in separate rows.

Shapes: T positions of a row, B rows of a call, D documents of one row.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from trainrig.errors import ConfigError, DataError
from trainrig.manifest import FileSum
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.permutation import Integers
from trainrig.tokens.rows import plan_files
from trainrig.tokens.rows.best_fit import pack_best_fit
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.shard_files import DOCUMENT_TARGETS, DOCUMENT_WEIGHT
from trainrig.tokens.shards.token_shards import TokenShards

ARRAYS: plan_files.Arrays = {
    "row_ends": np.dtype("<i8"),  # [R] number of the source's documents up to the end of each row
    "documents": np.dtype("<i8"),  # [D] document numbers, row by row
}
BLOCK_DOCUMENTS = 2**20  # documents packed together, which limits the memory of planning


def name_whole_plan(sequence_length: int) -> str:
    """Return the name of the plan for rows of `sequence_length` positions."""
    return f"whole-{sequence_length}"


def write_whole_plan(
    shards: TokenShards, sequence_length: int
) -> tuple[dict[str, Any], dict[str, FileSum]]:
    """Pack the documents of each source into rows; return counts, and the sums of the plan's files.

    Raises ValueError for a document longer than a row.
    """
    rows = ids = 0

    def fill(paths: Mapping[str, Path]) -> plan_files.Entries:
        nonlocal rows, ids
        entries = {source: dict.fromkeys(ARRAYS, 0) for source in shards.sources}
        with ExitStack() as opened:
            streams = {a: opened.enter_context(path.open("wb")) for a, path in paths.items()}
            for source in shards.sources:
                count = shards.count_documents(source)
                for first in range(0, count, BLOCK_DOCUMENTS):
                    numbers = np.arange(first, min(first + BLOCK_DOCUMENTS, count))
                    lengths = _compute_lengths(shards, source, numbers)
                    if lengths.max() > sequence_length + 1:
                        raise ValueError(f"{source}: {lengths.max()} ids do not fit in one row")
                    row_of = pack_best_fit(lengths, sequence_length + 1)
                    found = {
                        "row_ends": np.cumsum(np.bincount(row_of)) + entries[source]["documents"],
                        "documents": numbers[np.argsort(row_of, kind="stable")],
                    }
                    for array, dtype in ARRAYS.items():
                        streams[array].write(found[array].astype(dtype).tobytes())
                        entries[source][array] += len(found[array])
                    rows = rows + len(found["row_ends"])
                    ids = ids + int(lengths.sum())
        return entries

    settings = {"sequence_length": sequence_length}
    files = plan_files.write_plan(shards, name_whole_plan(sequence_length), settings, ARRAYS, fill)
    return {"rows": rows, "filled": round(ids / max(1, rows * (sequence_length + 1)), 4)}, files


class WholeRows:
    """Rows of one or more whole documents, padded at the end."""

    def __init__(
        self,
        shards: TokenShards,
        sequence_length: int,
        padding: int,
        cache: BlockCache | None = None,
        *,
        together: bool = True,
    ) -> None:
        """Open the plan if `together`, which puts several documents in a row; else one each.

        Raises ConfigError if there is no plan of this length, DataError if it does not fit.
        """
        self._shards = shards
        self._padding = padding
        self.length = sequence_length  # T
        self._plan: plan_files.PackingPlanFiles | None = None
        if together:
            remedy = (
                f"run `conversations` with sequence_length = {sequence_length}, or put one "
                'conversation into each row: packing = "none"'
            )
            name = name_whole_plan(sequence_length)
            self._plan = plan_files.PackingPlanFiles(shards, name, ARRAYS, cache, remedy)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the plan, or "" without a plan."""
        return self._plan.fingerprint if self._plan else ""

    def windows(self, source: str) -> int:
        """Return the number of rows of `source`."""
        if self._plan:
            return self._plan.count("row_ends", source)
        return self._shards.count_documents(source)

    def targets(self, source: str, windows: Integers, span: int) -> Integers:
        """Return [B] the number of targets of each row; raise ConfigError for a `span` above 1."""
        _check_span(span, self.length)
        return self._sum_by_row(DOCUMENT_TARGETS, source, windows)

    def sum_weights(self, source: str, windows: Integers) -> Integers:
        """Return [B] the sum of the target weights of each row, in hundredths."""
        return self._sum_by_row(DOCUMENT_WEIGHT, source, windows)

    def read(
        self, source: str, window: int, span: int, ids: Integers, targets: Integers
    ) -> Integers:
        """Fill a row document by document, as `Layout.read` says.

        Raises ConfigError for a `span` above 1, DataError for documents that a row cannot have.
        """
        _check_span(span, self.length)
        plan_files.check_windows(source, window, span, self.windows(source))
        row = np.full(self.length + 1, self._padding, dtype=np.int64)
        numbers, begins, ends, starts = self._find_places(source, window)
        for begin, end, start in zip(begins, ends, starts, strict=True):
            self._shards.read_into(source, int(start), row[begin:end])
        ids[:] = row[:-1]
        targets[:] = row[1:]
        weights = np.empty(self.length, dtype=np.int64)
        self.read_target_weights(source, window, weights)
        targets[weights == 0] = IGNORE
        return np.stack([begins, numbers], axis=1)[begins < self.length]

    def read_target_weights(self, source: str, window: int, out: Integers) -> None:
        """Fill `out` [T] with the weight of each target of the row, in hundredths."""
        weights = np.zeros(self.length + 1, dtype=np.int64)
        _, begins, ends, starts = self._find_places(source, window)
        for begin, end, start in zip(begins, ends, starts, strict=True):
            self._shards.read_weights(source, int(start), weights[begin:end])
        weights[begins] = 0
        out[:] = weights[1:]

    def _find_places(
        self, source: str, window: int
    ) -> tuple[Integers, Integers, Integers, Integers]:
        """Return, [D] each, the numbers of a row's documents, their begins, ends and source starts.

        Begins and ends are positions in the row, starts are positions in the source.
        """
        numbers = self._list_documents(source, np.array([window]))[0]
        starts = self._shards.find_document_starts(source, numbers)
        ends = np.cumsum(_compute_lengths(self._shards, source, numbers))
        if ends[-1] > self.length + 1:
            if self._plan:
                found = f"{source}: row {window} of {ends[-1]} ids, of {self.length + 1}"
                raise self._plan.make_impossible_error("documents", found)
            raise DataError(
                f"{self._shards.folder}: {source}: a conversation of {ends[-1]} ids is longer than "
                f"a row of {self.length + 1}; raise sequence_length, or run `conversations` with "
                "this sequence_length"
            )
        return numbers, np.append(0, ends[:-1]), ends, starts

    def _list_documents(self, source: str, windows: Integers) -> list[Integers]:
        """Return [B] the document numbers of each row."""
        if not self._plan:
            return [np.array([window]) for window in windows.tolist()]
        ends = self._plan.take("row_ends", source, windows)
        before = self._plan.take("row_ends", source, np.maximum(windows - 1, 0))
        begins = np.where(windows > 0, before, 0)
        count = self._plan.count("documents", source)
        if windows.size and ((begins < 0) | (begins >= ends) | (ends > count)).any():
            found = f"{source}: rows that end at documents {ends.min()} to {ends.max()}"
            raise self._plan.make_impossible_error("row_ends", f"{found}, of {count}")
        return [
            self._plan.read("documents", source, begin, end)
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        ]

    def _sum_by_row(self, array: str, source: str, windows: Integers) -> Integers:
        if not len(windows):
            return np.zeros(0, dtype=np.int64)
        documents = self._list_documents(source, windows)
        values = self._shards.read_document_values(array, source, np.concatenate(documents))
        firsts = np.cumsum([0, *(len(row) for row in documents[:-1])])
        return np.add.reduceat(values, firsts)


def _compute_lengths(shards: TokenShards, source: str, numbers: Integers) -> Integers:
    lengths: Integers = shards.find_document_starts(
        source, numbers + 1
    ) - shards.find_document_starts(source, numbers)
    return lengths


def _check_span(span: int, length: int) -> None:
    if span != 1:
        raise ConfigError(f"batches: all rows of conversations have the same length, {length}")
