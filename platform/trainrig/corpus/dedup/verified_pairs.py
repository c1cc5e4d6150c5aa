"""Files of verified pairs, which can be decided again at another threshold.

a, b             ids
    similarity       Jaccard similarity or containment, at least the evidence floor
    a_row, b_row     positions among the documents of their splits that passed the rules
    b_shelf          number of the split index of `b`
    a_rank, b_rank   ranks by the keep rule; of equal ranks the lower id may stay

There is one file for each split, with the pairs that belong to its documents: `a` comes after `b`
in the keep order, unless `b` is of an earlier crawl.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainrig import storage
from trainrig.corpus.array_types import UInt64s
from trainrig.corpus.dedup import document_refs
from trainrig.corpus.dedup.sorted_runs import Rows

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
_WHOLE = ["a_row", "b_shelf", "b_row", "a_rank", "b_rank"]  # columns of integers
_ROW_GROUP = 30_000  # rows per group: 3 MB, and 20 MB while they are built or read

PAIR = np.dtype([("a", "u8"), ("b", "u8"), ("similarity", "f8")])  # `a` and `b` are refs


def write_pairs(path: str, pairs: Rows, names: Rows) -> None:
    """Write the PAIR rows of one split; `names` are their DOCUMENT_KEY rows, sorted by ref."""
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
        "a_row": document_refs.find_positions(pairs["a"]),
        "b_shelf": document_refs.find_splits(pairs["b"]),
        "b_row": document_refs.find_positions(pairs["b"]),
        "a_rank": a["rank"],
        "b_rank": b["rank"],
    }
    return pa.table(columns).cast(SCHEMA)


def read_pairs(path: str, split_index: int, threshold: float) -> Iterator[tuple[Rows, Rows, Rows]]:
    """Yield the pairs of split index `split_index` from `threshold` up, in batches.

    Each batch has PAIR rows, the DOCUMENT_KEY of each pair's `a`, and that of its `b`.
    """
    with storage.open_for_arrow(path) as stream, pq.ParquetFile(stream) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            table = table.filter(pc.greater_equal(table["similarity"], threshold))
            columns = {name: table[name].to_numpy() for name in SCHEMA.names if name not in "ab"}
            pairs = np.empty(len(table), PAIR)
            pairs["a"] = document_refs.make_refs(split_index, columns["a_row"])
            pairs["b"] = document_refs.make_refs(columns["b_shelf"], columns["b_row"])
            pairs["similarity"] = columns["similarity"]
            ends = []
            for end in "ab":
                rows = np.empty(len(table), document_refs.DOCUMENT_KEY)
                rows["ref"] = pairs[end]
                rows["rank"] = columns[f"{end}_rank"]
                rows["id0"], rows["id1"] = _parse_id_column(table[end]).T
                ends.append(rows)
            yield pairs, ends[0], ends[1]


def _build_id_column(names: Rows) -> pa.LargeStringArray:
    """Build a column of ids without creating a Python string for each."""
    words = np.stack([names["id0"], names["id1"]], axis=1)
    ends = np.arange(0, document_refs.ID_DIGITS * len(words) + 1, document_refs.ID_DIGITS)
    buffers = pa.py_buffer(ends), pa.py_buffer(document_refs.format_joined_ids(words).encode())
    return pa.LargeStringArray.from_buffers(len(words), *buffers)


def _parse_id_column(column: pa.ChunkedArray) -> UInt64s:
    """Parse a column of ids as numbers [ids, 2]."""
    text = bytearray()
    for chunk in column.cast(pa.large_string()).chunks:
        if not len(chunk):  # Arrow may omit the buffers of an empty chunk
            continue
        _, ends, data = chunk.buffers()
        here = np.frombuffer(ends, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
        text += memoryview(data)[here[0] : here[-1]]
    return document_refs.parse_joined_ids(text.decode())
