"""Verified pairs, as rows that can be read, and decided on again at another threshold.

    a, b             ids
    similarity       of their shingles, from the floor of evidence up
    a_row, b_row     their places among the documents of their splits that passed
    b_shelf          the split of `b`, counted over all
    a_rank, b_rank   their places by the keep rule; of equals the lower id may stay

A file for each split, of the pairs whose lower ref it has.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trainrig import storage
from trainrig.corpus.dedup.names import ID_DIGITS, id_text, refs, text_words
from trainrig.corpus.dedup.runs import Rows

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
_ROW_GROUP = 100_000  # rows: 10 MB

_NAME = [("ref", "u8"), ("rank", "u8"), ("id0", "u8"), ("id1", "u8")]
EDGE = np.dtype([*_NAME, *((f"other_{name}", kind) for name, kind in _NAME), ("similarity", "f8")])


def write_pairs(path: str, columns: dict[str, NDArray[Any]]) -> None:
    """Write the pairs of one split; `a` and `b` as the words of ids [pairs, 2]."""
    texts = {name: _id_column(columns[name]) for name in ("a", "b")}
    table = pa.table({**columns, **texts}).select(SCHEMA.names).cast(SCHEMA)
    with storage.atomic_file(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            use_dictionary=["a", "b"],  # a document has several pairs
            row_group_size=_ROW_GROUP,
        )


def read_edges(path: str, shelf: int, threshold: float) -> Rows:
    """The pairs of shelf number `shelf` that are alike enough, each twice: once from either end."""
    with storage.open_read(path) as file:
        table = pq.read_table(file, filters=[("similarity", ">=", threshold)])
    columns = {name: table[name].to_numpy() for name in table.column_names if name not in "ab"}
    forth = np.empty(len(table), EDGE)
    forth["ref"] = refs(shelf, columns["a_row"])
    forth["other_ref"] = columns["b_row"].astype(np.uint64) | (
        columns["b_shelf"].astype(np.uint64) << np.uint64(32)
    )
    for end, column in (("", "a"), ("other_", "b")):
        forth[f"{end}rank"] = columns[f"{column}_rank"]
        words = _words_of(table[column])
        forth[f"{end}id0"], forth[f"{end}id1"] = words[:, 0], words[:, 1]
    forth["similarity"] = columns["similarity"]
    back = forth.copy()
    for name, _ in _NAME:
        back[name], back[f"other_{name}"] = forth[f"other_{name}"], forth[name]
    return np.concatenate([forth, back])


def _id_column(words: NDArray[np.uint64]) -> pa.LargeStringArray:
    """The texts of ids, without a Python string for each."""
    ends = np.arange(0, ID_DIGITS * len(words) + 1, ID_DIGITS)
    buffers = pa.py_buffer(ends), pa.py_buffer(id_text(words).encode())
    return pa.LargeStringArray.from_buffers(len(words), *buffers)


def _words_of(column: pa.ChunkedArray) -> NDArray[np.uint64]:
    """[ids, 2] what `_id_column` made a column of."""
    text = bytearray()
    for chunk in column.cast(pa.large_string()).chunks:
        if not len(chunk):  # Arrow need not have buffers for it
            continue
        _, ends, data = chunk.buffers()
        here = np.frombuffer(ends, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
        text += memoryview(data)[here[0] : here[-1]]
    return text_words(text.decode())
