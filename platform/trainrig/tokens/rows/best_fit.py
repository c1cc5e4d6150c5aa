"""Best-fit packing of documents into rows: the algorithm, its plans, and the reader of its rows.

This is best-fit decreasing, as Ding et al. 2024 ("Fewer Truncations Improve Language Modeling",
arXiv:2404.10830, section 3.2) use it for training text: the longest piece first, each into the row
with the least space in which it fits. They find this row for one piece at a time, in a tree of
spaces. Here all pieces of the same length are placed together, so the work grows with the number of
different lengths and spaces.

A plan is made when documents are tokenized, and says which pieces share a row.

A document of more than the T + 1 ids of a row is cut into pieces; each piece begins with the last
id of the piece before. All of its pieces but the last fill a row each. The last piece, and every
shorter document as a whole, are packed by `pack_best_fit`. A *fresh* piece begins a document; a
*continuing* piece does not.

A row has its continuing pieces first, then its fresh ones, both in the order of the source. The
first id of a row's first piece is not a target. For a continuing piece nothing is lost: that id is
a target in the row before. The order of the source does not depend on lengths. In the order of
packing, longest first, a model would see short documents only at the end of rows.

Each token is a target once an epoch, except the first token of a document that begins a row. There
is no target where padding follows, nor where the next id begins a continuing piece of a document.

Shapes: N documents or pieces of a block, R rows of it, T positions of a row, B rows of a call, P
pieces of documents in one row.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainrig import storage
from trainrig.errors import ConfigError
from trainrig.manifest import FileSum
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.permutation import Integers
from trainrig.tokens.rows import plan_files
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.token_shards import TokenShards


def pack_best_fit(lengths: Integers, capacity: int) -> Integers:
    """Return [N] the row of each piece; rows are numbered from 0 in the order of their creation.

    `lengths` is [N], each from 1 to `capacity` tokens. Pieces of equal length are placed in their
    order. Of rows with the same space left, the one that has had that space longest is filled
    first.
    """
    by_length = np.argsort(-lengths, kind="stable")
    row_of = np.empty(len(lengths), dtype=np.int64)
    rows = _OpenRows(capacity)
    placed = 0
    counts = np.bincount(lengths, minlength=1)
    for length in np.flatnonzero(counts)[::-1].tolist():
        end = placed + int(counts[length])
        while placed < end:
            taken = rows.fill(length, end - placed)
            row_of[by_length[placed : placed + len(taken)]] = taken
            placed += len(taken)
    return row_of


class _OpenRows:
    """The rows that are not full, grouped by the space that they have left."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._begun = 0
        # space -> row numbers in the order in which they came to have this space, in batches
        self._queues: defaultdict[int, deque[Integers]] = defaultdict(deque)
        # Entry [space] says whether a row has this space.
        self._has_space = np.zeros(capacity + 1, dtype=np.bool_)

    def fill(self, length: int, count: int) -> Integers:
        """Place up to `count` pieces of `length` into one batch of rows; return the row of each.

        A row that received a piece has the least space in which another can fit, so further pieces
        go to the same row until it is full: each row of a batch takes space // length pieces.
        """
        space = length + int(self._has_space[length:].argmax())
        if not self._has_space[space]:
            return self._open_rows(length, count)
        rows = self._queues[space].popleft()
        needed = -(-count // (space // length))
        if needed < len(rows):
            self._queues[space].appendleft(rows[needed:])
        self._has_space[space] = bool(self._queues[space])
        return self._put_pieces(rows[:needed], space, length, count)

    def _open_rows(self, length: int, count: int) -> Integers:
        needed = -(-count // (self._capacity // length))
        rows = np.arange(self._begun, self._begun + needed)
        self._begun += needed
        return self._put_pieces(rows, self._capacity, length, count)

    def _put_pieces(self, rows: Integers, space: int, length: int, count: int) -> Integers:
        """Put up to `count` pieces into `rows` with `space` left; return the row of each piece."""
        pieces_per_row = space // length
        taken = np.repeat(rows, pieces_per_row)[:count]
        full, rest = divmod(len(taken), pieces_per_row)
        self._queue_rows(rows[:full], space - pieces_per_row * length)
        if rest:
            self._queue_rows(rows[full:], space - rest * length)
        return taken

    def _queue_rows(self, rows: Integers, space: int) -> None:
        if len(rows) and space:
            self._queues[space].append(rows)
            self._has_space[space] = True


ARRAYS: plan_files.Arrays = {
    "row_ends": np.dtype("<i8"),  # [R] number of the source's pieces up to the end of each row
    "row_targets": np.dtype("<i4"),  # [R] number of positions of each row that are trained on
    "starts": np.dtype("<i8"),  # [P] position of each piece in the source
    "lengths": np.dtype("<i4"),  # [P] ids of each piece
}
# Documents packed together. Limits the memory of planning to about 125 MB. The last rows of a block
# have few pieces left to fill them: with this many documents like web text, in rows of 2,048,
# 0.002% of all positions are padding (tests/benchmarks/test_packing.py).
BLOCK_DOCUMENTS = 2**20
# Limit on the rows that the documents of a block fill, for sources of very long documents.
BLOCK_ROWS = 2**20
PIECES_AT_ONCE = 2**20  # pieces whose starts are searched at a time: 8 MiB


def name_plan(sequence_length: int) -> str:
    """Return the name of the plan for rows of `sequence_length` positions."""
    return f"best_fit-{sequence_length}"


@dataclass(frozen=True)
class PackedRows:
    """Pieces of documents, grouped by row."""

    row_ends: Integers  # [R] number of pieces up to the end of each row
    row_targets: Integers  # [R] number of positions trained on
    starts: Integers  # [P] position of each piece in the source
    lengths: Integers  # [P] ids of each piece


def write_best_fit_plan(
    shards: TokenShards, sequence_length: int, padding: int
) -> tuple[dict[str, Any], dict[str, FileSum]]:
    """Pack the documents of each source into rows; return counts, and the sums of the plan's files.

    `padding` is the id that fills the rest of rows.
    """
    counts: Counter[str] = Counter()

    def fill(paths: Mapping[str, Path]) -> plan_files.Entries:
        entries = {source: dict.fromkeys(ARRAYS, 0) for source in shards.sources}
        with ExitStack() as opened:
            streams = {a: opened.enter_context(path.open("wb")) for a, path in paths.items()}
            for source, bounds in _iterate_blocks(shards, sequence_length):
                rows = pack_block(bounds, sequence_length)
                windows = (shards.tokens(source) - 1) // sequence_length
                counts.update(_count_block(bounds, rows, sequence_length, windows))
                rows.row_ends[:] += entries[source]["starts"]
                for array, dtype in ARRAYS.items():
                    values = getattr(rows, array)
                    streams[array].write(values.astype(dtype).tobytes())
                    entries[source][array] += len(values)
        return entries

    settings = {"sequence_length": sequence_length, "padding": padding}
    files = plan_files.write_plan(shards, name_plan(sequence_length), settings, ARRAYS, fill)
    total_bytes = sum(entry.bytes for entry in files.values())
    return {**counts, "bytes": total_bytes}, files


def _iterate_blocks(shards: TokenShards, sequence_length: int) -> Iterator[tuple[str, Integers]]:
    """Yield (source, bounds) for blocks of N documents.

    `bounds` is [N + 1]: where each document begins, and where the last one ends.
    """
    for source in shards.sources:
        first = 0
        count = shards.count_documents(source)
        tokens = shards.tokens(source)
        while first < count:
            begin = int(shards.find_document_starts(source, np.array([first]))[0])
            reach = min(begin + BLOCK_ROWS * sequence_length, tokens - 1)
            reached = int(shards.find_document_numbers(source, np.array([reach]))[0])
            past = min(reached + 1, first + BLOCK_DOCUMENTS)
            yield source, shards.find_document_starts(source, np.arange(first, past + 1))
            first = past


def pack_block(bounds: Integers, sequence_length: int) -> PackedRows:
    """Return the rows of N documents; `bounds` [N + 1] has their starts and the end of the last."""
    lengths = np.diff(bounds)
    filled = (lengths - 1) // sequence_length  # rows that each document fills alone
    document = np.repeat(np.arange(len(lengths)), filled)
    number = np.arange(len(document)) - np.repeat(np.cumsum(filled) - filled, filled)
    # If `filled`, the first id of the rest is a target in the row before.
    rest = lengths - filled * sequence_length
    left = (filled == 0) | (rest > 1)
    shared = _share_rows(
        (bounds[:-1] + filled * sequence_length)[left],
        rest[left],
        filled[left] > 0,
        sequence_length,
    )
    return PackedRows(
        np.append(np.arange(1, len(document) + 1), len(document) + shared.row_ends),
        np.append(np.full(len(document), sequence_length), shared.row_targets),
        np.append(bounds[document] + number * sequence_length, shared.starts),
        np.append(np.full(len(document), sequence_length + 1), shared.lengths),
    )


def _share_rows(
    starts: Integers, lengths: Integers, continues: Integers, sequence_length: int
) -> PackedRows:
    """Pack pieces of at most one row each; `continues` [P] says which are continuing pieces."""
    row_of = pack_best_fit(lengths, sequence_length + 1)
    order = np.argsort(row_of * 2 + ~continues, kind="stable")
    pieces = np.bincount(row_of)
    row_ends = np.cumsum(pieces)
    ids = np.bincount(row_of, lengths).astype(np.int64)
    continuing = np.bincount(row_of, continues).astype(np.int64)
    row_targets = ids - 1 - np.maximum(continuing - 1, 0)
    return PackedRows(row_ends, row_targets, starts[order], lengths[order])


def _count_block(
    bounds: Integers, rows: PackedRows, sequence_length: int, windows: int
) -> dict[str, int]:
    """Count the block's documents, rows and padding, and the cuts that concatenation would make.

    `windows` is the number of rows of the source if it were concatenated.
    """
    begins = bounds[:-1]
    ends = bounds[1:]
    row_ends = np.minimum(begins // sequence_length + 1, windows) * sequence_length + 1
    return {
        "documents": len(begins),
        "documents_cut": int(np.count_nonzero(ends - begins > sequence_length + 1)),
        "documents_cut_if_concatenated": int(np.count_nonzero(ends > row_ends)),
        "rows": len(rows.row_ends),
        "targets": int(rows.row_targets.sum()),
        "padding": int(len(rows.row_ends) * (sequence_length + 1) - rows.lengths.sum()),
    }


class BestFitRows:
    """Rows of whole documents, padded; only documents longer than a row are cut."""

    def __init__(self, shards: TokenShards, sequence_length: int, cache: BlockCache | None) -> None:
        """Open the plan; raise ConfigError if there is none, DataError if it does not fit."""
        self._shards = shards
        self._length = sequence_length
        remedy = _suggest_remedy(shards.folder, sequence_length)
        self._plan = plan_files.PackingPlanFiles(
            shards, name_plan(sequence_length), ARRAYS, cache, remedy
        )
        self._padding = self._plan.head.settings["padding"]
        self.fingerprint = self._plan.fingerprint

    def windows(self, source: str) -> int:
        """Return the number of rows of the plan for `source`."""
        return self._plan.count("row_ends", source)

    def targets(self, source: str, windows: Integers, span: int) -> Integers:
        """Return [B] the number of targets of each row, from the plan.

        Raises ConfigError for a `span` above 1, DataError for numbers that a row cannot have.
        """
        self._check_span(span)
        targets = self._plan.take("row_targets", source, windows).astype(np.int64)
        if targets.size and not 0 <= targets.min() <= targets.max() <= self._length:
            found = f"rows of {targets.min()} to {targets.max()} targets, of {self._length}"
            raise self._plan.make_impossible_error("row_targets", found)
        return targets

    def read(
        self, source: str, window: int, span: int, ids: Integers, targets: Integers
    ) -> Integers:
        """Fill a row piece by piece, as `Layout.read` says.

        Raises ConfigError for a `span` above 1, DataError for pieces that a row cannot have.
        """
        self._check_span(span)
        plan_files.check_windows(source, window, span, self.windows(source))
        starts, lengths = self._read_pieces(source, window)
        row = np.full(self._length + 1, self._padding, dtype=np.int64)
        ends = np.cumsum(lengths)
        begins = ends - lengths
        for begin, end, start in zip(begins, ends, starts, strict=True):
            self._shards.read_into(source, int(start), row[begin:end])
        numbers = self._shards.find_document_numbers(source, starts)
        continues = self._shards.find_document_starts(source, numbers) < starts
        ids[:] = row[:-1]
        targets[:] = row[1:]
        targets[ends[-1] - 1 :] = IGNORE
        targets[begins[1:][continues[1:]] - 1] = IGNORE
        return np.stack([begins, numbers], axis=1)[begins < self._length]

    def find_windows(self, source: str, numbers: Integers) -> Integers:
        """Return the windows that hold the documents, as `MaskableLayout.find_windows` says.

        Reads the starts of all pieces of the source: 8 bytes each.
        """
        count = self._plan.count("starts", source)
        bounds = self._shards.find_document_starts(source, np.stack([numbers, numbers + 1]))
        order = np.argsort(numbers)
        begins, ends = bounds[:, order]
        found = set[tuple[int, int]]()
        for first in range(0, count, PIECES_AT_ONCE):
            starts = self._plan.read("starts", source, first, min(count, first + PIECES_AT_ONCE))
            document = np.searchsorted(begins, starts, "right") - 1
            inside = np.flatnonzero((document >= 0) & (starts < ends[np.maximum(document, 0)]))
            windows = self._plan.search("row_ends", source, first + inside)
            found |= {
                *zip(windows.tolist(), numbers[order][document[inside]].tolist(), strict=True)
            }
        return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)

    def find_last_target(self, source: str, window: int, span: int) -> int:
        """Return the number of the document of a row's last target, or -1 if it is padding."""
        starts, lengths = self._read_pieces(source, window)
        if lengths.sum() <= self._length:
            return -1
        return int(self._shards.find_document_numbers(source, starts[-1:])[0])

    def _read_pieces(self, source: str, window: int) -> tuple[Integers, Integers]:
        """Return the [P] start in the source and the [P] length of each of the row's pieces."""
        known = max(window - 1, 0)  # the pieces of row 0 begin at piece 0, which is not stored
        row_ends = self._plan.read("row_ends", source, known, window + 1)
        begin = 0 if window == 0 else int(row_ends[0])
        end = int(row_ends[-1])
        count = self._plan.count("starts", source)
        if not 0 <= begin < end <= count:
            found = f"{source}: row {window} of pieces {begin} to {end}, of {count}"
            raise self._plan.make_impossible_error("row_ends", found)
        starts = self._plan.read("starts", source, begin, end)
        lengths = self._plan.read("lengths", source, begin, end).astype(np.int64)
        if lengths.min() < 1 or lengths.sum() > self._length + 1:
            found = f"{source}: row {window} of {lengths.sum()} ids, of {self._length + 1}"
            raise self._plan.make_impossible_error("lengths", found)
        tokens = self._shards.tokens(source)
        if starts.min() < 0 or (starts > tokens - lengths).any():
            found = f"{source}: row {window} begins at ids {starts.min()} to {starts.max()}"
            raise self._plan.make_impossible_error("starts", f"{found}, of {tokens}")
        return starts, lengths

    def _check_span(self, span: int) -> None:
        if span != 1:
            raise ConfigError(
                f"packing: BestFit has rows of one length ({self._length}), but a row of "
                f"{span * self._length} is needed; use one sequence_length, or Concatenate"
            )


def _suggest_remedy(folder: str, sequence_length: int) -> str:
    prefix = storage.join(folder, plan_files.PLANS, name_plan(0))[:-1]
    suffix = plan_files.HEAD
    there = [
        path.removeprefix(prefix).removesuffix(suffix)
        for path in storage.list_files(storage.join(folder, plan_files.PLANS), suffix)
        if path.startswith(prefix)
    ]
    planned = f"there are plans for {', '.join(sorted(there, key=int))}; " if there else ""
    return (
        f"{planned}tokenize with {sequence_length} in `best_fit` under `[plans]`, or use the "
        f"packing Concatenate"
    )
