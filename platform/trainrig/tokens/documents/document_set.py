"""The documents that tokenizing reads: a folder that `curate` wrote, or files from elsewhere.

A run file says `documents = "FOLDER"` of the first, and has a `[[documents]]` table for each lot of
the second: JSON lines, Parquet, or Arrow as Hugging Face `datasets` saves it. Either way they
become rows of one form, dealt to splits that depend on the files alone, never on who reads them.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from trainrig import manifest, storage
from trainrig.config import NOT_IDENTITY, Field, Settings
from trainrig.corpus.document import compute_document_id
from trainrig.corpus.files.measured_documents import KEPT
from trainrig.errors import DataError
from trainrig.splits import Split
from trainrig.tokens.documents.files import find_paths, name_files
from trainrig.tokens.documents.formats import FORMATS, StagePart, find_value

# Bytes of text that a split is made of unless the caller says otherwise: some 16 million tokens,
# which a worker holds as 32 to 64 MB until its shard is written.
SPLIT_BYTES = 2**26
OPENERS = 16  # threads that look at files before they are dealt: on S3 they wait for answers


class Column(Settings):
    """A column that says it for each row."""

    column: str  # name of the column


class Curated(Settings):
    """The documents that `curate` kept."""

    kind: Literal["Curated"] = "Curated"
    folder: Annotated[str, NOT_IDENTITY]  # folder that `curate` wrote


class _Files(Settings):
    """Files of documents, each row of them one; columns may be named as `meta.url` inside others.

    A row without usable text is counted and put into quarantine.
    """

    # Files, folders and patterns (* and ? are wildcards), on disk or s3://.
    paths: Annotated[tuple[str, ...], NOT_IDENTITY, Field(min_length=1)]
    # Source of the documents in the mixture: a name, or the column that holds it.
    source: Annotated[str, Field(min_length=1)] | Column
    text: str = "text"  # column of the text
    id: str | None = None  # column of the ids; None: made by BLAKE2b-128 of source, URL and text
    url: str | None = None  # column of the URLs; None: documents have none
    language: str | None = None  # column of the language; None: not known


class JSONL(_Files):
    """JSON lines (.jsonl, .ndjson, .json), plain or packed by gzip (.gz) or Zstandard (.zst)."""

    kind: Literal["JSONL"] = "JSONL"


class Parquet(_Files):
    """Parquet, such as the data folders of the Hugging Face Hub."""

    kind: Literal["Parquet"] = "Parquet"


class Arrow(_Files):
    """Arrow IPC streams or files: folders that `datasets.save_to_disk` wrote."""

    kind: Literal["Arrow"] = "Arrow"


# Add a new one here, and how it is read to `document_formats.FORMATS`.
Files = JSONL | Parquet | Arrow
DocumentFiles = Annotated[Curated | Files, Field(discriminator="kind")]


def _from_folder(given: Any) -> Any:
    return ({"kind": "Curated", "folder": given},) if isinstance(given, str) else given


_Tables = Annotated[tuple[DocumentFiles, ...], Field(min_length=1)]
# What a stage's `documents` may be: a folder that `curate` wrote, or tables.
Documents = Annotated[_Tables, BeforeValidator(_from_folder, json_schema_input_type=str | _Tables)]


@dataclass(frozen=True)
class RefusedRow:
    """A row that is no document, and why."""

    file: str
    # Which row of the file, from 0; of JSON lines the byte (unpacked) at which the line begins.
    place: int
    reason: str


Refuse = Callable[[RefusedRow], None]


@dataclass(frozen=True)
class DocumentSet:
    """Documents ready to be read, here or in workers: it may be pickled."""

    tables: tuple[Files, ...]
    inputs: Mapping[str, str]  # role -> fingerprint, for `manifest.claim`
    # Of the files that `curate` left, by path.
    sums: Mapping[str, manifest.FileSum] = field(default_factory=dict)

    def cut_splits(self, split_bytes: int = SPLIT_BYTES) -> list[Split]:
        """The documents in order, cut into splits of about so many bytes of text.

        Small files share a split; large ones are cut where their format allows. Raises DataError
        for what is no file of its kind and for columns that are not there.
        """
        for table in self.tables:
            if peek := FORMATS[table.kind].peek:
                peek(table.paths[0], _list_columns(table))
        with ThreadPoolExecutor(OPENERS) as threads:
            cuts = [
                threads.submit(_cut_pieces, number, table, path, name, split_bytes)
                for number, table in enumerate(self.tables)
                for path, name in zip(table.paths, name_files(table.paths), strict=True)
            ]
            pieces = [piece for cut in cuts for piece in cut.result()]
        return [
            Split(name, {"name": name, "pieces": [asdict(piece) for piece in dealt]})
            for number, dealt in enumerate(deal(pieces, split_bytes))
            for name in [f"documents-{number:05d}"]
        ]

    def read_rows(
        self, task: Mapping[str, Any], refuse: Refuse = lambda refused: None
    ) -> Iterator[dict[str, Any]]:
        """The documents of one split's task, in order.

        Each has `id`, `url`, `source`, `language`, `text`, `text_bytes`, `file` and `row` (where it
        stands in the file, as `Refused.place`). Rows that are none go to `refuse`. Raises DataError
        for a whole file of such rows, and for one of other bytes than `curate` wrote.
        """
        for piece in (StagePart(**fields) for fields in task["pieces"]):
            if expected := self.sums.get(piece.path):
                _check_file(piece.path, expected)
            yield from _read_documents(piece, self.tables[piece.table], refuse)


def open_documents(documents: Sequence[DocumentFiles]) -> DocumentSet:
    """Find the files of a stage's `documents`. Raises DataError for what is not there."""
    tables: list[Files] = []
    inputs: dict[str, str] = {}
    sums: dict[str, manifest.FileSum] = {}
    for number, table in enumerate(documents):
        role = "documents" if len(documents) == 1 else f"documents[{number}]"
        if isinstance(table, Curated):
            curated = manifest.read_input(table.folder, "curate")
            inputs[role] = curated.content
            sums |= {storage.join(table.folder, name): s for name, s in curated.files.items()}
            kept = storage.list_files(storage.join(table.folder, KEPT), ".parquet")
            tables.append(_KEPT.model_copy(update={"paths": tuple(kept)}))
        else:
            paths = tuple(find_paths(table.kind, table.paths))
            # The names of files come to stand in shards, so they are part of what is read.
            named_keys = zip(
                name_files(paths), map(storage.compute_content_key, paths), strict=True
            )
            inputs[role] = manifest.digest([list(each) for each in named_keys])
            tables.append(table.model_copy(update={"paths": paths}))
    return DocumentSet(tuple(tables), inputs, sums)


@functools.lru_cache(maxsize=1024)  # a process is given neighbouring pieces of a file
def _check_file(path: str, expected: manifest.FileSum) -> None:
    """Read the whole file once before its rows: some 1 s a gigabyte, and encoding takes minutes."""
    manifest.check_sum(path, storage.compute_sha256(path), expected)


# The files that `curate` leaves.
_KEPT = Parquet(
    paths=("",), source=Column(column="source"), id="id", url="url", language="language"
)


def _list_columns(table: Files) -> tuple[str, ...]:
    """The columns that are read: of the text first."""
    source = table.source.column if isinstance(table.source, Column) else None
    names = (table.text, source, table.id, table.url, table.language)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def _cut_pieces(
    number: int, table: Files, path: str, name: str, split_bytes: int
) -> list[StagePart]:
    return [
        StagePart(number, path, name, cut.begin, cut.end, cut.weight, cut.whole)
        for cut in FORMATS[table.kind].cut(path, _list_columns(table), split_bytes)
    ]


def deal(pieces: Sequence[StagePart], split_bytes: int) -> Iterator[list[StagePart]]:
    """Pieces in order, as many to a split as stay within `split_bytes`, but at least one."""
    dealt: list[StagePart] = []
    for piece in pieces:
        if dealt and sum(each.weight for each in dealt) + piece.weight > split_bytes:
            yield dealt
            dealt = []
        dealt.append(piece)
    if dealt:
        yield dealt


def _read_documents(piece: StagePart, table: Files, refuse: Refuse) -> Iterator[dict[str, Any]]:
    refused: Counter[str] = Counter()
    usable = 0
    for place, row in FORMATS[table.kind].read(piece, _list_columns(table)):
        document = row if isinstance(row, str) else _parse_document(row, table)
        if isinstance(document, str):
            refused[document] += 1
            refuse(RefusedRow(piece.file, place, document))
        else:
            usable += 1
            yield document | {"file": piece.file, "row": place}
    if piece.whole and refused and not usable:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in refused.most_common(3))
        raise DataError(
            f"{piece.path}: none of its {refused.total():,} rows is a document ({reasons}); see "
            f"that `text` ('{table.text}') names the column of the text, or leave the file out"
        )


def _parse_document(row: Mapping[str, Any], table: Files) -> dict[str, Any] | str:
    """The document that `row` is, or why it is none."""
    text = find_value(row, table.text)
    if text is None:
        return "no_text"
    if not isinstance(text, str):
        return "text_not_a_string"
    if not text or text.isspace():
        return "empty_text"
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write
        return "not_unicode"
    source = (
        _read_name(row, table.source.column) if isinstance(table.source, Column) else table.source
    )
    if not source:
        return "no_source"
    url = _read_name(row, table.url)
    return {
        "id": _read_name(row, table.id) or compute_document_id(source, url, encoded),
        "url": url,
        "source": source,
        "language": _read_name(row, table.language),
        "text": text,
        "text_bytes": len(encoded),
    }


def _read_name(row: Mapping[str, Any], column: str | None) -> str:
    """The value of a column as a string; empty if there is no such column, or nothing in it."""
    value = None if column is None else find_value(row, column)
    name = "" if value is None else str(value)
    return name if name.isascii() else name.encode("utf-8", "replace").decode()
