"""Documents of a curation: their fields, the Parquet files of their rows, and where these lie.

A document is the output of the corpus stages and the input of tokenization. Measured documents lie
in parts, as the pages were read, or in the two folders of a finished curation:

    scratch/pages/SPLIT-NNNNN.parquet       rows of one part of a split, without the verdict
    scratch/quarantine/SPLIT-NNNNN.jsonl    records of that part that gave no document

The bytes of a Parquet file depend on its rows alone: rows arrive in tables of any size, and row
groups are cut by row count.

Replacing the files of a finished output is safe against a kill at any moment. All new files are
complete before the first old file is deleted. From then on a note in the output lists what remains
to be done, and the next process to open the output finishes it first.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from trainrig import storage
from trainrig.corpus.removed_spans import Removed, restore
from trainrig.errors import DataError
from trainrig.manifest import MANIFEST, SCRATCH, Below, Manifest
from trainrig.splits import Split, Task

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def compute_document_id(source: str, url: str, body: bytes) -> str:
    """Compute BLAKE2b-128, in hex, over the source, the URL and the SHA-256 of the raw body.

    The text is not included, so a better extractor gives the same document a better text.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (source, "\n", url, "\n"):
        digest.update(part.encode("utf-8", "surrogatepass"))
    digest.update(hashlib.sha256(body).digest())
    return digest.hexdigest()


ROW_GROUP = 1000  # rows per group: about 5 MB of text, which a writer buffers


class RowFile:
    """A Parquet file being written by `writing`."""

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self._writer = writer
        self._schema = schema
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        """Append rows; columns outside the file's schema are left out."""
        self._waiting.append(table.select(self._schema.names).cast(self._schema))
        self._rows += len(table)
        if self._rows >= ROW_GROUP:
            self._write(self._rows - self._rows % ROW_GROUP)

    def _write(self, rows: int) -> None:
        import pyarrow as pa

        # One chunk, because the chunks of the input must not change how rows are encoded.
        waiting = pa.concat_tables([self._schema.empty_table(), *self._waiting]).combine_chunks()
        if rows or not self._writer_has_rows:
            self._writer.write_table(waiting.slice(0, rows), row_group_size=ROW_GROUP)
            self._writer_has_rows = True
        self._waiting = [waiting.slice(rows)]
        self._rows -= rows

    _writer_has_rows = False

    def close(self) -> None:
        """Write the buffered rows; a file without rows gets one empty row group."""
        if self._rows or not self._writer_has_rows:
            self._write(self._rows)


@contextlib.contextmanager
def writing(path: str, schema: pa.Schema) -> Iterator[RowFile]:
    """Open a Parquet file for appending rows.

    The file appears at `path` only when the block ends without an exception.
    """
    import pyarrow.parquet as pq

    with (
        storage.atomic_file(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        file = RowFile(writer, schema)
        yield file
        file.close()


def read_columns(path: str, columns: Sequence[str]) -> pa.Table:
    """Read the named columns of the Parquet file at `path`."""
    import pyarrow.parquet as pq

    # a bucket sends only the bytes of these columns
    with storage.open_for_arrow(path) as file:
        return pq.read_table(file, columns=list(columns))


def read_column_names(path: str) -> list[str]:
    """Return the column names of the Parquet file at `path`."""
    import pyarrow.parquet as pq

    with storage.open_read(path) as file:
        return list(pq.read_schema(file).names)


KEPT = "kept"
DROPPED = "dropped"
QUARANTINE = "quarantine"
PAGES = "pages"
ROW = "row"  # column with a record's position among all records read of its split


PAGE_FILES = "page_files"  # key of a task: number of parts of its split


class MeasuredDocuments(Protocol):
    """Source of measured documents, by split."""

    def add_to_tasks(self, splits: Sequence[Split]) -> list[Split]:
        """Return `splits` with what `select` needs to know of each one in its task."""

    def without_splits(self) -> MeasuredDocuments:
        """Return the source for all tasks of a pass, without a row for each split."""

    def select(self, task: Task) -> MeasuredDocuments:
        """Return the documents of the split of `task`, which `add_to_tasks` returned."""

    def iterate_chunks(self, split: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of `split` in reading order, as tables of moderate size."""

    def list_columns(self, split: str) -> list[str]:
        """Return the names of the stored columns; none if the split has no rows."""

    def read_quarantined(self, split: str) -> bytes:
        """Return the JSON lines of the records that gave no document."""


@dataclass(frozen=True)
class Parts:
    """Measured documents as the reading pass leaves them: one file for each part of a split."""

    output: str
    numbers: Mapping[str, int]  # number of parts, by split; empty while pages are being read

    def add_to_tasks(self, splits: Sequence[Split]) -> list[Split]:
        """Return `splits` with the number of its parts in each task."""
        return [
            Split(split.name, {**split.task, PAGE_FILES: self.numbers[split.name]})
            for split in splits
        ]

    def without_splits(self) -> Parts:
        """Return the source without the numbers of parts."""
        return Parts(self.output, {})

    def select(self, task: Task) -> Parts:
        """Return the documents of the split of `task`."""
        return Parts(self.output, {task["name"]: task[PAGE_FILES]})

    def name_page_file(self, split: str, number: int) -> str:
        """Return the path of the rows of part `number`."""
        return storage.join(self.output, SCRATCH, PAGES, f"{split}-{number:05d}.parquet")

    def name_quarantine_file(self, split: str, number: int) -> str:
        """Return the path of the quarantined records of part `number`."""
        return storage.join(self.output, SCRATCH, QUARANTINE, f"{split}-{number:05d}.jsonl")

    def is_done(self, split: str, number: int) -> bool:
        """Return whether both files of a part exist."""
        files = (self.name_page_file(split, number), self.name_quarantine_file(split, number))
        return len(storage.measure_sizes(files)) == len(files)

    def iterate_chunks(self, split: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of each part, in order."""
        for number in range(self.numbers[split]):
            yield read_columns(self.name_page_file(split, number), columns)

    def list_columns(self, split: str) -> list[str]:
        """Return the column names of the first part, or none if there is no part."""
        return read_column_names(self.name_page_file(split, 0)) if self.numbers[split] else []

    def read_quarantined(self, split: str) -> bytes:
        """Return the quarantine lines of all parts."""
        parts = range(self.numbers[split])
        paths = [self.name_quarantine_file(split, number) for number in parts]
        return b"".join(storage.read_files(paths))


@dataclass(frozen=True)
class DecidedDocuments:
    """Measured documents of a finished curation: kept and dropped documents together."""

    output: str

    def add_to_tasks(self, splits: Sequence[Split]) -> list[Split]:
        """Return `splits`: the names of their files suffice."""
        return list(splits)

    def without_splits(self) -> DecidedDocuments:
        """Return this source, which holds nothing of a split."""
        return self

    def select(self, task: Task) -> DecidedDocuments:
        """Return this source, which reads files by name."""
        return self

    def iterate_chunks(self, split: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield all rows of the split as one table.

        Columns that were not stored for dropped documents are null in their rows.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        names = list(dict.fromkeys([*columns, ROW, *(["cut"] if "text" in columns else [])]))
        tables = []
        for folder in (KEPT, DROPPED):
            path = storage.join(self.output, folder, f"{split}.parquet")
            there = read_column_names(path)
            tables.append(read_columns(path, [name for name in names if name in there]))
        together = pa.concat_tables(tables, promote_options="default")
        in_order = together.take(pc.sort_indices(together, [(ROW, "ascending")]))
        yield _restore_texts(in_order).select(list(columns))

    def list_columns(self, split: str) -> list[str]:
        """Return the column names of the kept documents."""
        return read_column_names(storage.join(self.output, KEPT, f"{split}.parquet"))

    def read_quarantined(self, split: str) -> bytes:
        """Return the quarantine lines of the split."""
        return storage.read(storage.join(self.output, QUARANTINE, f"{split}.jsonl"))


def _restore_texts(rows: pa.Table) -> pa.Table:
    """Return `rows` with the original texts, before any span was removed."""
    import pyarrow as pa

    if "cut" not in rows.column_names:
        return rows
    texts = [
        restore(text, [Removed(**span) for span in cut]) if cut else text
        for text, cut in zip(rows["text"].to_pylist(), rows["cut"].to_pylist(), strict=True)
    ]
    place = rows.column_names.index("text")
    return rows.set_column(place, "text", pa.array(texts, pa.string()))


class _ReplacementNote(BaseModel):
    """List of the moves and deletions of a replacement in progress."""

    model_config = ConfigDict(frozen=True)

    new: Below  # folder of the new files, relative to the output
    old: list[Below]  # files to delete: in the old manifest and not in the new one
    unlisted: list[Below]  # new files that no manifest lists, such as the report
    manifest: Manifest  # manifest of the new files


@dataclass(frozen=True)
class Replacement:
    """Replacement of the files in the folder `output`."""

    output: str

    @property
    def _note_path(self) -> str:
        return storage.join(self.output, SCRATCH, "replacement.json")

    def begin(self, manifest: Manifest, new: str, unlisted: Sequence[str] = ()) -> None:
        """Move all new files from folder `new` into the output, and delete the old ones.

        The new files are those of `manifest` and the `unlisted` ones.
        """
        old = Manifest.model_validate_json(storage.read(storage.join(self.output, MANIFEST)))
        note = _ReplacementNote(
            new=new.removeprefix(f"{self.output}/"),
            old=sorted(set(old.files) - set(manifest.files)),
            unlisted=list(unlisted),
            manifest=manifest,
        )
        storage.write(self._note_path, note.model_dump_json().encode())
        self.go_on()

    def go_on(self) -> None:
        """Finish the replacement that a note in the output describes; do nothing without a note.

        Raises DataError if the note is not valid.
        """
        try:
            note = _ReplacementNote.model_validate_json(storage.read(self._note_path))
        except FileNotFoundError:
            return
        except ValidationError as error:
            what = error.errors()[0]["msg"]
            raise DataError(
                f"{self._note_path}: truncated, or not written by trainrig: {what}"
            ) from None
        # a half-replaced output must not look finished
        storage.delete(storage.join(self.output, MANIFEST))
        targets = {
            storage.join(self.output, note.new, name): storage.join(self.output, name)
            for name in (*note.manifest.files, *note.unlisted)
        }
        fresh = storage.measure_sizes(targets)
        storage.move_files({path: targets[path] for path in fresh})
        storage.delete_files(storage.join(self.output, name) for name in note.old)
        data = note.manifest.model_dump_json(indent=1).encode()
        storage.write(storage.join(self.output, MANIFEST), data)
        storage.delete_folder(storage.join(self.output, SCRATCH))
