"""Where the measured documents of a curation lie: in parts, as the pages were read, or in the two
folders that an earlier decision put them into.

    scratch/pages/SPLIT-NNNNN.parquet       rows of one part of a split, all columns but the verdict
    scratch/quarantine/SPLIT-NNNNN.jsonl    what of that part gave no document
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

KEPT, DROPPED, QUARANTINE, PAGES = "kept", "dropped", "quarantine", "pages"
ROW = "row"  # the column of a record's place among those read of its split


class MeasuredDocuments(Protocol):
    """Measured documents, by split."""

    def iterate_chunks(self, split: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The rows of `split` in the order in which their pages were read, a few at a time."""

    def list_columns(self, split: str) -> list[str]:
        """The columns that there are; none where no row is."""

    def read_quarantined(self, split: str) -> bytes:
        """The lines of what gave no document."""


@dataclass(frozen=True)
class Parts:
    """The pool that reading leaves: a file for each part of a split."""

    output: str
    numbers: Mapping[str, int]  # of parts, by split; while reading, of none

    def name_page_file(self, split: str, number: int) -> str:
        """Where the rows of part `number` are."""
        return storage.join(self.output, SCRATCH, PAGES, f"{split}-{number:05d}.parquet")

    def name_quarantine_file(self, split: str, number: int) -> str:
        """Where what gave no document is."""
        return storage.join(self.output, SCRATCH, QUARANTINE, f"{split}-{number:05d}.jsonl")

    def is_done(self, split: str, number: int) -> bool:
        """Whether both files of a part are there."""
        files = (self.name_page_file(split, number), self.name_quarantine_file(split, number))
        return all(storage.exists(path) for path in files)

    def iterate_chunks(self, split: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """One part after the other."""
        for number in range(self.numbers[split]):
            yield read_columns(self.name_page_file(split, number), columns)

    def list_columns(self, split: str) -> list[str]:
        """Those of the first part."""
        return read_column_names(self.name_page_file(split, 0)) if self.numbers[split] else []

    def read_quarantined(self, split: str) -> bytes:
        """The lines of all parts."""
        parts = range(self.numbers[split])
        return b"".join(storage.read(self.name_quarantine_file(split, number)) for number in parts)


@dataclass(frozen=True)
class DecidedDocuments:
    """The pool that a finished curation is: kept and dropped documents together."""

    output: str

    def iterate_chunks(self, split: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All rows of the split at once; what was not kept of the dropped is null there."""
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
        yield _as_read(in_order).select(list(columns))

    def list_columns(self, split: str) -> list[str]:
        """Those of the kept documents."""
        return read_column_names(storage.join(self.output, KEPT, f"{split}.parquet"))

    def read_quarantined(self, split: str) -> bytes:
        """The lines as they were written."""
        return storage.read(storage.join(self.output, QUARANTINE, f"{split}.jsonl"))


def _as_read(rows: pa.Table) -> pa.Table:
    """`rows` with their texts as they were before anything was cut out of them."""
    import pyarrow as pa

    if "cut" not in rows.column_names:
        return rows
    texts = [
        restore(text, [Removed(**each) for each in cut]) if cut else text
        for text, cut in zip(rows["text"].to_pylist(), rows["cut"].to_pylist(), strict=True)
    ]
    place = rows.column_names.index("text")
    return rows.set_column(place, "text", pa.array(texts, pa.string()))
