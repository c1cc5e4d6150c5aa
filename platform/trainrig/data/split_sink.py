"""A sink of Ray Data that writes one Parquet file for each split.

    OUT/  rows/SPLIT.parquet …  splits.parquet, written last: split, file, rows, bytes, sha256
          fragments/RUN/FRAGMENT.parquet …, in an unfinished output only

A write task gets some of the blocks of a split, as Ray cuts and deals them, so it writes fragments
under random names. When all tasks are done, the fragments that they reported are put together,
by tasks as well, in the order of the column `row`. So a file depends on the rows of its split
alone, not on blocks, workers or failures, and fragments of killed tasks are left out.
"""

import collections
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import ray
from ray.data.block import Block, BlockAccessor
from ray.data.datasource import Datasink, WriteResult

from trainrig import manifest, storage
from trainrig.corpus.documents import ROW, writing
from trainrig.errors import ConfigError, OutputTaken

SPLIT = "split"  # column with the name of a row's split
ROWS = "rows"  # folder of the files
SPLITS = "splits.parquet"
FRAGMENTS = "fragments"

_HELD_BYTES = 2**27  # bytes of rows that a write task holds before it writes a fragment
_TOGETHER = 64  # splits that one task finishes

_SPLIT_RECORD = pa.schema(
    [
        ("split", pa.string()),
        ("file", pa.string()),  # relative to the folder of the output
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("sha256", pa.string()),
    ]
)


@dataclass(frozen=True)
class _Fragment:
    """A file with some rows of a split."""

    split: str
    path: str
    first: int  # lowest `row`
    rows: int


class SplitSink(Datasink[list[_Fragment]]):
    """Sink that writes the rows of each split to `rows/SPLIT.parquet` in `folder`.

    The rows need the columns `split` and `row` of `read_pages`, and are sorted by `row`. A split
    without rows has no file. `splits.parquet` lists the files with their rows, bytes and SHA-256,
    and is written last: without it, the output is unfinished, and writing starts over.

    Raises OutputTaken if `folder` holds a finished output, or files that no sink wrote.

    >>> documents.write_datasink(trainrig.data.SplitSink("documents"))
    >>> ray.data.read_parquet("documents/rows")
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = storage.make_absolute(os.fspath(folder))
        if storage.exists(storage.join(self._folder, SPLITS)):
            raise OutputTaken(
                f"{self._folder}: this folder holds a finished output ({SPLITS}); name another "
                "folder, or delete this one"
            )
        first = storage.find_first(self._folder)
        begun = storage.join(self._folder, FRAGMENTS)
        if first is not None and storage.find_first(begun) is None:
            raise OutputTaken(
                f"{self._folder}: this folder holds other files ({first.rpartition('/')[2]}, …); "
                "name another folder"
            )
        self._fragments = storage.join(begun, uuid.uuid4().hex)

    def write(self, blocks: Iterable[Block], ctx: Any) -> list[_Fragment]:
        """Write the rows of `blocks` to fragments, and return these."""
        held: dict[str, list[pa.Table]] = {}
        size = 0
        fragments: list[_Fragment] = []
        for block in blocks:
            for split, rows in _group_by_split(BlockAccessor.for_block(block).to_arrow()):
                held.setdefault(split, []).append(rows)
                size += rows.nbytes
            if size >= _HELD_BYTES:
                fragments += self._write_fragments(held)
                held = {}
                size = 0
        return fragments + self._write_fragments(held)

    def _write_fragments(self, held: dict[str, list[pa.Table]]) -> list[_Fragment]:
        return [self._write_fragment(split, _sort_rows(tables)) for split, tables in held.items()]

    def _write_fragment(self, split: str, rows: pa.Table) -> _Fragment:
        path = storage.join(self._fragments, f"{uuid.uuid4().hex}.parquet")
        _write_rows(path, rows)
        return _Fragment(split, path, rows[ROW][0].as_py(), len(rows))

    def on_write_complete(self, write_result: WriteResult[list[_Fragment]]) -> None:
        """Put the fragments of each split together, and write the table of splits."""
        of_split: dict[str, list[_Fragment]] = collections.defaultdict(list)
        for fragments in write_result.write_returns:
            for fragment in fragments:
                of_split[fragment.split].append(fragment)
        storage.delete_folder(storage.join(self._folder, ROWS))  # left by an unfinished output
        ordered = [of_split[split] for split in sorted(of_split)]
        finish = ray.remote(_finish_splits)
        tasks = [
            finish.remote(self._folder, ordered[begin : begin + _TOGETHER])
            for begin in range(0, len(ordered), _TOGETHER)
        ]
        records = [record for found in ray.get(tasks) for record in found]
        table = pa.Table.from_pylist(records, _SPLIT_RECORD)
        _write_rows(storage.join(self._folder, SPLITS), table)
        storage.delete_folder(storage.join(self._folder, FRAGMENTS))

    def on_write_failed(self, error: Exception) -> None:
        """Delete the fragments, unless they mark the files of splits as unfinished."""
        if storage.find_first(storage.join(self._folder, ROWS)) is None:
            storage.delete_folder(self._fragments)


def _finish_splits(folder: str, of_split: Sequence[Sequence[_Fragment]]) -> list[dict[str, Any]]:
    """Write the file of each split from its fragments; return their records."""
    return [_finish_split(folder, fragments) for fragments in of_split]


def _finish_split(folder: str, fragments: Sequence[_Fragment]) -> dict[str, Any]:
    split = fragments[0].split
    below = f"{ROWS}/{split}.parquet"
    path = storage.join(folder, below)
    # A single fragment is read too, because the reader gives the elements of lists another name,
    # and the bytes of the file would depend on the number of fragments.
    in_order = sorted(fragments, key=lambda fragment: fragment.first)
    _write_rows(path, _sort_rows([_read_rows(fragment.path) for fragment in in_order]))
    written = manifest.compute_file_sum(path)
    return {
        "split": split,
        "file": below,
        "rows": sum(fragment.rows for fragment in fragments),
        "bytes": written.bytes,
        "sha256": written.sha256,
    }


def _group_by_split(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield the name and the rows of each split in `rows`. Raises ConfigError for other rows."""
    missing = [name for name in (SPLIT, ROW) if name not in rows.column_names]
    if missing and len(rows):
        raise ConfigError(
            f"SplitSink: the rows have no column {', '.join(missing)}; keep the columns "
            f"`{SPLIT}` and `{ROW}` that `read_pages` adds"
        )
    names = pc.unique(rows[SPLIT]).to_pylist() if len(rows) else []
    for name in names:
        yield name, rows if len(names) == 1 else rows.filter(pc.equal(rows[SPLIT], name))


def _sort_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all `tables` by their numbers; rows of one number keep their order."""
    together = pa.concat_tables(
        [table.replace_schema_metadata(None) for table in tables], promote_options="permissive"
    )
    return together.take(pc.sort_indices(together, [(ROW, "ascending")]))


def _write_rows(path: str, rows: pa.Table) -> None:
    with writing(path, rows.schema) as file:
        file.add(rows)


def _read_rows(path: str) -> pa.Table:
    with storage.open_for_arrow(path) as file:
        return pq.read_table(file)
