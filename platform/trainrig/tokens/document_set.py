"""The documents that a run file names: their files, and the assignment of each document to a split.

A run file says `documents = "FOLDER"` for the output of `curate`. For other files it has one or
more `[[documents]]` tables: JSON lines, Parquet, or Arrow as saved by Hugging Face `datasets`.
Either way rows become documents of the same form and are assigned to splits. The splits depend on
the files alone, not on the number of workers that read them.

The rule for documents that are held out of training reads the hash of the normalised URL, or of the
id (`is_held_out`).
"""

import fnmatch
import functools
import hashlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import BeforeValidator

from trainrig import manifest, storage
from trainrig.config import NOT_IDENTITY, Field, Settings
from trainrig.corpus.documents import KEPT, compute_document_id
from trainrig.corpus.read.input_files import PASSED_OVER_NAMED, format_files
from trainrig.corpus.read.json_rows import find_text, find_value
from trainrig.errors import DataError
from trainrig.splits import CRASHED, RecordSelection, Split
from trainrig.storage.missing_folders import describe_origin
from trainrig.tokens.document_formats import FORMATS, Format, StagePart

log = logging.getLogger(__name__)

# Default size of a split, in bytes of text. About 16 million tokens, which a worker holds in 32 to
# 64 MB of memory until their shard is written.
SPLIT_BYTES = 2**26
OPENERS = 16  # threads that inspect files before they are assigned: on S3 most of it is waiting


class Column(Settings):
    """A column that holds the value for each row."""

    column: str  # name of the column


class Curated(Settings):
    """The documents that `curate` kept."""

    kind: Literal["Curated"] = "Curated"
    folder: Annotated[str, NOT_IDENTITY]  # folder that `curate` wrote


class _Files(Settings):
    """Files with one document a row; a column inside another one is named as in `meta.url`.

    Rows without usable text are counted and written to quarantine.
    """

    # Files, folders and patterns (* and ? are wildcards), on disk or in a bucket.
    paths: Annotated[tuple[str, ...], NOT_IDENTITY, Field(min_length=1)]
    # Source of the documents in the mixture: a name, or the column that holds the name.
    source: Annotated[str, Field(min_length=1)] | Column
    # Column with the text, which is a string or a list of strings. Several columns, such as
    # ["instruction", "input", "output"], are joined in this order; empty ones are left out.
    text: str | Annotated[tuple[str, ...], Field(min_length=1)] = "text"
    join: str = "\n\n"  # separator of the strings of a list, and of several columns
    id: str | None = None  # column with the ids; None: BLAKE2b-128 of source, URL and text
    url: str | None = None  # column with the URLs; None: documents have no URL
    language: str | None = None  # column with the language; None: the language is unknown


class JSONL(_Files):
    """JSON lines or arrays of objects (.jsonl, .ndjson, .json).

    They may be compressed with gzip (.gz), zstd (.zst), bzip2 (.bz2) or xz (.xz).
    """

    kind: Literal["JSONL"] = "JSONL"


class Parquet(_Files):
    """Parquet files, such as the data folders of the Hugging Face Hub."""

    kind: Literal["Parquet"] = "Parquet"


class Arrow(_Files):
    """Arrow IPC streams or files, such as folders that `datasets.save_to_disk` wrote."""

    kind: Literal["Arrow"] = "Arrow"


# Add a new file format here, and its reader to `FORMATS` in document_formats.py.
Files = JSONL | Parquet | Arrow
DocumentFiles = Annotated[Curated | Files, Field(discriminator="kind")]


def _from_folder(given: Any) -> Any:
    return ({"kind": "Curated", "folder": given},) if isinstance(given, str) else given


_Tables = Annotated[tuple[DocumentFiles, ...], Field(min_length=1)]
# Type of the key `documents` of a stage: a folder that `curate` wrote, or tables.
Documents = Annotated[_Tables, BeforeValidator(_from_folder, json_schema_input_type=str | _Tables)]


@dataclass(frozen=True)
class RefusedRow:
    """A row that is not a usable document, and the reason."""

    file: str
    # Number of the row in its file, from 0; in JSON lines, the (uncompressed) byte where it begins.
    place: int
    reason: str


Refuse = Callable[[RefusedRow], None]
QUARANTINE = "quarantine"  # folder of the refused rows


def write_quarantine(
    output: str, name: str, refused: Iterable[RefusedRow]
) -> dict[str, manifest.FileSum]:
    """Write the refused rows of a split to quarantine; return the sum of the file, if any."""
    lines = [json.dumps(vars(row), ensure_ascii=False) + "\n" for row in refused]
    if not lines:
        return {}
    below = f"{QUARANTINE}/{name}.jsonl"
    storage.write(storage.join(output, below), "".join(lines).encode("utf-8", "surrogatepass"))
    return {below: manifest.compute_file_sum(storage.join(output, below))}


@dataclass(frozen=True)
class DocumentSet:
    """Documents ready to be read in this process or in workers; picklable."""

    tables: tuple[Files, ...]
    inputs: Mapping[str, str]  # role -> fingerprint, for the manifest of the stage that reads them
    # Path -> size and SHA-256, for the files that `curate` wrote.
    sums: Mapping[str, manifest.FileSum] = field(default_factory=dict)

    def cut_splits(self, split_bytes: int = SPLIT_BYTES) -> list[Split]:
        """Divide the documents, in order, into splits of about `split_bytes` bytes of text.

        Small files share a split; large files are cut where their format allows. Raises DataError
        for a file that is not of its table's format, and for a column that does not exist.
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
            for number, dealt in enumerate(group_parts(pieces, split_bytes))
            for name in [f"documents-{number:05d}"]
        ]

    def read_rows(
        self,
        task: Mapping[str, Any],
        refuse: Refuse = lambda refused: None,
        records: RecordSelection | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield the documents of one split, in order; `task` is the `task` of the split.

        Each document has the keys `id`, `url`, `source`, `language`, `text`, `text_bytes`, `file`
        and `row` (its position in the file, as in `RefusedRow.place`). Unusable rows are passed to
        `refuse` instead. Raises DataError if a whole file has only unusable rows, or if a file from
        `curate` has changed since it was written. `records` chooses the rows of a task that leaves
        some out; None: by `task`.
        """
        records = records or RecordSelection(task)
        for piece in (StagePart(**fields) for fields in task["pieces"]):
            if expected := self.sums.get(piece.path):
                _check_file(piece.path, expected)
            yield from _read_documents(piece, self.tables[piece.table], refuse, records)


def open_documents(documents: Sequence[DocumentFiles]) -> DocumentSet:
    """Find the files of a stage's `documents`; raise DataError if any are missing."""
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
            # Shards record the names of their documents' files, so names are part of the input.
            keys = storage.compute_content_keys(paths)
            named_keys = zip(name_files(paths), keys, strict=True)
            inputs[role] = manifest.digest([list(named_key) for named_key in named_keys])
            tables.append(table.model_copy(update={"paths": paths}))
    return DocumentSet(tuple(tables), inputs, sums)


@functools.lru_cache(maxsize=1024)  # a process reads several adjacent parts of the same file
def _check_file(path: str, expected: manifest.FileSum) -> None:
    """Compare the SHA-256 of a whole file; about 1 s a GB, where encoding takes minutes."""
    manifest.check_sum(path, storage.compute_sha256(path), expected)


# Columns of the files that `curate` writes.
_KEPT = Parquet(
    paths=("",), source=Column(column="source"), id="id", url="url", language="language"
)


def _list_columns(table: Files) -> tuple[str, ...]:
    """Return the columns to read, the column with the text first."""
    source = table.source.column if isinstance(table.source, Column) else None
    texts = (table.text,) if isinstance(table.text, str) else table.text
    names = (*texts, source, table.id, table.url, table.language)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def _cut_pieces(
    number: int, table: Files, path: str, name: str, split_bytes: int
) -> list[StagePart]:
    return [
        StagePart(number, path, name, cut.begin, cut.end, cut.weight, cut.whole)
        for cut in FORMATS[table.kind].cut(path, _list_columns(table), split_bytes)
    ]


def group_parts(pieces: Sequence[StagePart], split_bytes: int) -> Iterator[list[StagePart]]:
    """Yield lists of adjacent parts, each of at most `split_bytes` in all, or of a single part."""
    dealt: list[StagePart] = []
    for piece in pieces:
        if dealt and sum(part.weight for part in dealt) + piece.weight > split_bytes:
            yield dealt
            dealt = []
        dealt.append(piece)
    if dealt:
        yield dealt


def _read_documents(
    piece: StagePart, table: Files, refuse: Refuse, records: RecordSelection
) -> Iterator[dict[str, Any]]:
    refused: Counter[str] = Counter()
    usable = 0
    rows = FORMATS[table.kind].read(piece, _list_columns(table))
    for (place, row), crashed in records.choose(rows):
        if crashed:
            refuse(RefusedRow(piece.file, place, CRASHED))
            continue
        document = row if isinstance(row, str) else _parse_document(row, table)
        if isinstance(document, str):
            refused[document] += 1
            refuse(RefusedRow(piece.file, place, document))
        else:
            usable += 1
            yield document | {"file": piece.file, "row": place}
    if piece.whole and refused and not usable and not records.probing:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in refused.most_common(3))
        raise DataError(
            f"{piece.path}: none of its {refused.total():,} rows is a usable document ({reasons}); "
            f"set `text` ('{table.text}') to the column with the text, or leave the file out"
        )


def _parse_document(row: Mapping[str, Any], table: Files) -> dict[str, Any] | str:
    """Return the document that `row` holds, or the reason why the row is unusable."""
    try:
        text = find_text(row, table.text, table.join)
    except TypeError:
        return "text_not_a_string"
    if text is None:
        return "no_text"
    if not text or text.isspace():
        return "empty_text"
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can contain
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
    """Return the value of a column as a string, or "" if the column is missing or empty."""
    value = None if column is None else find_value(row, column)
    name = "" if value is None else str(value)
    return name if name.isascii() else name.encode("utf-8", "replace").decode()


def find_paths(kind: str, patterns: Sequence[str]) -> list[str]:
    """Return the files that `patterns` match, sorted, without duplicates.

    Raises DataError if a pattern matches no file.
    """
    patterns = [storage.resolve(pattern) for pattern in patterns]
    files = storage.measure_sizes(patterns)
    found = set(files)
    for pattern in patterns:
        if pattern not in files:
            found.update(_find_matching(FORMATS[kind], pattern))
    # "./a", "a" and "/folder/a" may be the same file.
    places = {_locate_file(path): path for path in sorted(found)}
    return [
        path if storage.is_remote(path) else str(Path(path)) for _, path in sorted(places.items())
    ]


def name_files(paths: Sequence[str]) -> list[str]:
    """Return a short unique name for each file: its path below the folder that contains them all.

    Files on disk and files in buckets have no folder in common. If there are both, the paths are
    relative to one folder of each kind, and names begin with `disk/` or the scheme, such as `s3/`.
    """
    places = [_locate_file(path) for path in paths]
    kinds = sorted({kind for kind, _ in places})
    folders = {
        kind: os.path.commonpath(
            [path.rpartition("/")[0] or "/" for location, path in places if location == kind]
        )
        for kind in kinds
    }
    names = [path.removeprefix(folders[kind]).removeprefix("/") for kind, path in places]
    if len(kinds) == 1:
        return names
    return [f"{kind}/{name}" for (kind, _), name in zip(places, names, strict=True)]


def _locate_file(path: str) -> tuple[str, str]:
    """Return the scheme of a file's storage or "disk", and its normalised absolute path there.

    Symbolic links are not resolved: a linked folder counts as a folder of its own.
    """
    if storage.is_remote(path):
        scheme, rest = storage.split_scheme(path)
        return scheme, "/" + rest
    return "disk", os.path.normpath(Path(path).absolute())


def _find_matching(format_: Format, pattern: str) -> list[str]:
    wild = min((pattern.find(sign) for sign in "*?[" if sign in pattern), default=None)
    folder = pattern if wild is None else pattern[:wild].rpartition("/")[0] or "."
    names = storage.list_files(folder)
    if wild is None:
        return _list_folder(format_, folder, names)
    wanted = pattern if "/" in pattern else f"./{pattern}"
    found = [name for name in names if fnmatch.fnmatchcase(name, wanted)]
    if not found:
        origin = describe_origin(pattern)
        raise DataError(f"{pattern}: matches none of the {len(names)} files in {folder}{origin}")
    return found


def _list_folder(format_: Format, folder: str, names: Sequence[str]) -> list[str]:
    endings = " ".join(f"*{ending}" for ending in format_.endings)
    found = [name for name in names if name.endswith(format_.endings)]
    if others := sorted(set(names) - set(found)) if found else []:
        first = ", ".join(others[:PASSED_OVER_NAMED]) + ", …" * (len(others) > PASSED_OVER_NAMED)
        log.info(
            "%s: %s passed over, as the name does not end in %s: %s",
            folder,
            format_files(len(others)),
            endings,
            first,
        )
    # Leave out the results of past computations that `datasets` caches beside the data.
    found = [name for name in found if not re.search(r"/(cache|tmp)-[^/]*\.arrow$", name)]
    if not found:
        problem = (
            f"none of its {len(names)} files is named {endings}"
            if names
            else f"no such file or folder with files{describe_origin(folder)}"
        )
        raise DataError(f"{folder}: {problem}; set `paths` to files, folders or patterns with *")
    splits = sorted(
        {split for name in found for split in _parse_hub_split(name.removeprefix(folder))}
    )
    if len(splits) > 1:
        raise DataError(
            f"{folder}: contains the splits {', '.join(splits)}, some of which are for testing; "
            f"set `paths` to the files of one split"
        )
    return found


def _parse_hub_split(name: str) -> list[str]:
    """Return the split (train, test, …) in a file's name, by the Hugging Face Hub's conventions."""
    parts = name.lstrip("/").split("/")
    if len(parts) > 1 and re.fullmatch(r"data-\d+-of-\d+\.arrow", parts[-1]):
        return [parts[-2]]
    found = re.fullmatch(r"(\w+?)-\d+-of-\d+(-\w+)?\.\w+", parts[-1])
    return [found[1]] if found and found[1] != "data" else []


def is_held_out(url: str, share: float) -> bool:
    """Return whether the document at `url` is held out of training, if `share` of all are.

    Depends only on the hash of the normalised URL. A document stays in training or held out if
    other documents are added and if it is fetched again; a held-out document also stays held out if
    `share` rises. For a document without a URL, pass another unique string, such as its id.
    """
    if share == 0:
        return False
    digest = hashlib.blake2b(normalise_url(url).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


# Pattern of most URLs, which need no parsing: only slashes at the end are removed.
_PLAIN = re.compile(r"https?://[a-z0-9.-]+(?:/[!\"$->@-~]*)?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def normalise_url(url: str) -> str:
    """Return a normal form of `url`, which is the same for other spellings of it.

    Scheme and host are in lower case; there is no default port, no fragment and no slash at the
    end; the query's parameters are sorted. A URL that cannot be parsed is returned unchanged.
    """
    if _PLAIN.fullmatch(url):
        scheme, _, rest = url.partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}://{host}{(slash + path).rstrip('/')}"
    return _normalise_parts(url)


def _normalise_parts(url: str) -> str:
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        return url
    host = parts.hostname or ""
    if ":" in host:  # IPv6
        host = f"[{host}]"
    if port not in (None, _DEFAULT_PORTS.get(parts.scheme)):
        host = f"{host}:{port}"
    user, at, _ = parts.netloc.rpartition("@")
    query = "&".join(sorted(parts.query.split("&")))
    return urlunsplit((parts.scheme, user + at + host, parts.path.rstrip("/"), query, ""))
