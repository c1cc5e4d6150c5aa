"""Locations of the measured documents of a curation.

They lie in parts, as the pages were read, or in the two folders of a finished curation:

scratch/pages/SPLIT-NNNNN.parquet       rows of one part of a split, without the verdict
    scratch/quarantine/SPLIT-NNNNN.jsonl    records of that part that gave no document
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trainrig import storage
from trainrig.corpus.files.removed_spans import Removed, restore
from trainrig.corpus.files.row_files import read_column_names, read_columns
from trainrig.manifest import SCRATCH

if TYPE_CHECKING:
    import pyarrow as pa

KEPT = "kept"
DROPPED = "dropped"
QUARANTINE = "quarantine"
PAGES = "pages"
ROW = "row"  # column with a record's position among all records read of its split


class MeasuredDocuments(Protocol):
    """Source of measured documents, by split."""

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

    def name_page_file(self, split: str, number: int) -> str:
        """Return the path of the rows of part `number`."""
        return storage.join(self.output, SCRATCH, PAGES, f"{split}-{number:05d}.parquet")

    def name_quarantine_file(self, split: str, number: int) -> str:
        """Return the path of the quarantined records of part `number`."""
        return storage.join(self.output, SCRATCH, QUARANTINE, f"{split}-{number:05d}.jsonl")

    def is_done(self, split: str, number: int) -> bool:
        """Return whether both files of a part exist."""
        files = (self.name_page_file(split, number), self.name_quarantine_file(split, number))
        return all(storage.exists(path) for path in files)

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
        return b"".join(storage.read(self.name_quarantine_file(split, number)) for number in parts)


@dataclass(frozen=True)
class DecidedDocuments:
    """Measured documents of a finished curation: kept and dropped documents together."""

    output: str

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
