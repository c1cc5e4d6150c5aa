"""Plans for best-fit packing, made when documents are tokenized: which pieces share a row.

A document of more than the T + 1 ids of a row is cut into pieces; each piece begins with the last
id of the piece before. All of its pieces but the last fill a row each. The last piece, and every
shorter document as a whole, are packed by best_fit.py. A *fresh* piece begins a document; a
*continuing* piece does not.

A row has its continuing pieces first, then its fresh ones, both in the order of the source. The
first id of a row's first piece is not a target. For a continuing piece nothing is lost: that id is
a target in the row before. The order of the source does not depend on lengths. In the order of
packing, longest first, a model would see short documents only at the end of rows.

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
