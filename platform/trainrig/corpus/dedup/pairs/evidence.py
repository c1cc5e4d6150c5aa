"""Verified pairs, as rows that can be read, and decided on again at another threshold.

    a, b             ids
    similarity       of their shingles, from the floor of evidence up
    a_row, b_row     their places among the documents of their splits that passed
    b_shelf          the split of `b`, counted over all
    a_rank, b_rank   their places by the keep rule; of equals the lower id may stay

A file for each split, of the pairs that belong to its documents: `a` comes after `b` in the keep
order, unless `b` is of an earlier crawl.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trainrig import storage
from trainrig.corpus.dedup.pairs.document_reference import (
    DOCUMENT_KEY,
    ID_DIGITS,
    find_positions,
    find_splits,
    format_joined_ids,
    make_refs,
    parse_joined_ids,
)
from trainrig.corpus.dedup.pairs.sorted_runs import Rows

SCHEMA = pa.schema(
    [
        ("a", pa.string()),
        ("b", pa.string()),
        ("similarity", pa.float64()),
        ("a_row", pa.int64()),
        ("b_shelf", pa.int64()),
        ("b_row", pa.int64()),
        ("a_rank", pa.uint64()),
        ("b_rank", pa.uint64()),
    ]
)
_WHOLE = ["a_row", "b_shelf", "b_row", "a_rank", "b_rank"]  # numbers
_ROW_GROUP = 30_000  # rows: 3 MB, and as they are read and made 20

PAIR = np.dtype([("a", "u8"), ("b", "u8"), ("similarity", "f8")])  # refs


def write_pairs(path: str, pairs: Rows, names: Rows) -> None:
    """Write the PAIRs of one split; `names` are DOCUMENT_KEY of all in them, in the order of
    refs."""
    with (
        storage.atomic_file(path) as temporary,
        pq.ParquetWriter(
            temporary,
            SCHEMA,
            compression="zstd",
            use_dictionary=["a", "b"],  # a document has several pairs
            column_encoding=dict.fromkeys(_WHOLE, "DELTA_BINARY_PACKED"),
        ) as writer,
    ):
        for first in range(0, len(pairs), _ROW_GROUP):
            writer.write_table(_build_table(pairs[first : first + _ROW_GROUP], names))


def _build_table(pairs: Rows, names: Rows) -> pa.Table:
    known = np.ascontiguousarray(names["ref"])
    a, b = (np.take(names, np.searchsorted(known, pairs[end])) for end in "ab")
    columns = {
        "a": _build_id_column(a),
        "b": _build_id_column(b),
        "similarity": pairs["similarity"],
        "a_row": find_positions(pairs["a"]),
        "b_shelf": find_splits(pairs["b"]),
        "b_row": find_positions(pairs["b"]),
        "a_rank": a["rank"],
        "b_rank": b["rank"],
    }
    return pa.table(columns).cast(SCHEMA)


def read_pairs(path: str, split_index: int, threshold: float) -> Iterator[tuple[Rows, Rows, Rows]]:
    """The pairs of split index number `split_index` that are alike enough, some at a time.

    Returns: PAIR of each; NAME of each one's `a`; NAME of each one's `b`.
    """
    with storage.open_for_arrow(path) as stream, pq.ParquetFile(stream) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            table = table.filter(pc.greater_equal(table["similarity"], threshold))
            columns = {name: table[name].to_numpy() for name in SCHEMA.names if name not in "ab"}
            pairs = np.empty(len(table), PAIR)
            pairs["a"] = make_refs(split_index, columns["a_row"])
            pairs["b"] = make_refs(columns["b_shelf"], columns["b_row"])
            pairs["similarity"] = columns["similarity"]
            ends = []
            for end in "ab":
                rows = np.empty(len(table), DOCUMENT_KEY)
                rows["ref"], rows["rank"] = pairs[end], columns[f"{end}_rank"]
                rows["id0"], rows["id1"] = _parse_id_column(table[end]).T
                ends.append(rows)
            yield pairs, ends[0], ends[1]


def _build_id_column(names: Rows) -> pa.LargeStringArray:
    """The texts of ids, without a Python string for each."""
    words = np.stack([names["id0"], names["id1"]], axis=1)
    ends = np.arange(0, ID_DIGITS * len(words) + 1, ID_DIGITS)
    buffers = pa.py_buffer(ends), pa.py_buffer(format_joined_ids(words).encode())
    return pa.LargeStringArray.from_buffers(len(words), *buffers)


def _parse_id_column(column: pa.ChunkedArray) -> NDArray[np.uint64]:
    """[ids, 2] what `_build_id_column` made a column of."""
    text = bytearray()
    for chunk in column.cast(pa.large_string()).chunks:
        if not len(chunk):  # Arrow need not have buffers for it
            continue
        _, ends, data = chunk.buffers()
        here = np.frombuffer(ends, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
        text += memoryview(data)[here[0] : here[-1]]
    return parse_joined_ids(text.decode())
