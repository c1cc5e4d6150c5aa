"""Which pieces of documents share a row: best-fit packing, planned when documents are tokenized.

A document of more than the T + 1 ids of a row is cut, each piece beginning with the last id of the
one before: all but the last of them fill a row each. What is left of it, and every shorter
document, whole, are packed by best_fit.py. A piece that begins a document is *fresh*, one that goes
on with a document *continues* it.

In a row, pieces that continue come first, then the fresh ones, both in the order of the source. A
row loses the first id of its first piece as a target; that of a continuing piece is a target in the
row before, so nothing is lost. The order of the source knows nothing of lengths: the order of
packing, longest first, would let a model see short documents at the end of rows only.

Shapes: N documents of a block, R rows, P pieces.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainrig.manifest import FileSum
from trainrig.tokens.packing.best_fit import pack_best_fit
from trainrig.tokens.packing.plan_files import Arrays, Entries, write_plan
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.token_shards import TokenShards

ARRAYS: Arrays = {
    "row_ends": np.dtype("<i8"),  # [R] pieces, of the source, up to the end of each row
    "row_targets": np.dtype("<i4"),  # [R] positions of each row that are trained on
    "starts": np.dtype("<i8"),  # [P] tokens of the source
    "lengths": np.dtype("<i4"),  # [P] ids
}
# Documents packed together, which bounds the memory of planning, to about 125 MB. A block's last
# rows find little to fill them: with so many documents like web text, in rows of 2,048, 0.002% of
# all positions are padding (tests/benchmarks/test_packing.py).
BLOCK_DOCUMENTS = 2**20
# Rows that a block may have of documents longer than a row, where documents are very long.
BLOCK_ROWS = 2**20


def name_plan(sequence_length: int) -> str:
    """Of the plan for rows of `sequence_length` positions."""
    return f"best_fit-{sequence_length}"


@dataclass(frozen=True)
class PackedRows:
    """Pieces in rows, row by row."""

    row_ends: Integers  # [R] pieces up to the end of each row
    row_targets: Integers  # [R] positions trained on
    starts: Integers  # [P] tokens of the source
    lengths: Integers  # [P] ids


def write_best_fit_plan(
    shards: TokenShards, sequence_length: int, padding: int
) -> tuple[dict[str, Any], dict[str, FileSum]]:
    """Pack the documents of each source into rows: counts, and the sums of the plan's files.

    `padding` is the id that fills rows up.
    """
    counts: Counter[str] = Counter()

    def fill(paths: Mapping[str, Path]) -> Entries:
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
    files = write_plan(shards, name_plan(sequence_length), settings, ARRAYS, fill)
    total_bytes = sum(entry.bytes for entry in files.values())
    return {**counts, "bytes": total_bytes}, files


def _iterate_blocks(shards: TokenShards, sequence_length: int) -> Iterator[tuple[str, Integers]]:
    """Blocks of documents, each of one source: [N + 1] where they begin, and the last one ends."""
    for source in shards.sources:
        first, count, tokens = 0, shards.count_documents(source), shards.tokens(source)
        while first < count:
            begin = int(shards.find_document_starts(source, np.array([first]))[0])
            reach = min(begin + BLOCK_ROWS * sequence_length, tokens - 1)
            reached = int(shards.find_document_numbers(source, np.array([reach]))[0])
            past = min(reached + 1, first + BLOCK_DOCUMENTS)
            yield source, shards.find_document_starts(source, np.arange(first, past + 1))
            first = past


def pack_block(bounds: Integers, sequence_length: int) -> PackedRows:
    """The rows of N documents; `bounds`: [N + 1] where they begin, and the last one ends."""
    lengths = np.diff(bounds)
    filled = (lengths - 1) // sequence_length  # rows that each document fills by itself
    of = np.repeat(np.arange(len(lengths)), filled)
    nth = np.arange(len(of)) - np.repeat(np.cumsum(filled) - filled, filled)
    rest = lengths - filled * sequence_length  # its first id, if `filled`, is a target before
    left = (filled == 0) | (rest > 1)
    shared = _share_rows(
        (bounds[:-1] + filled * sequence_length)[left],
        rest[left],
        filled[left] > 0,
        sequence_length,
    )
    return PackedRows(
        np.append(np.arange(1, len(of) + 1), len(of) + shared.row_ends),
        np.append(np.full(len(of), sequence_length), shared.row_targets),
        np.append(bounds[of] + nth * sequence_length, shared.starts),
        np.append(np.full(len(of), sequence_length + 1), shared.lengths),
    )


def _share_rows(
    starts: Integers, lengths: Integers, continues: Integers, sequence_length: int
) -> PackedRows:
    """Pieces of at most a row each, packed. `continues`: [P] whether a document began before."""
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
    """What became of the documents of a block, and what cutting them end to end would have done.

    `windows`: rows that the source, laid end to end, is cut into.
    """
    begins, ends = bounds[:-1], bounds[1:]
    row_ends = np.minimum(begins // sequence_length + 1, windows) * sequence_length + 1
    return {
        "documents": len(begins),
        "documents_cut": int(np.count_nonzero(ends - begins > sequence_length + 1)),
        "documents_cut_if_concatenated": int(np.count_nonzero(ends > row_ends)),
        "rows": len(rows.row_ends),
        "targets": int(rows.row_targets.sum()),
        "padding": int(len(rows.row_ends) * (sequence_length + 1) - rows.lengths.sum()),
    }
