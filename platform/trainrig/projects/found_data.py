"""Inspection of the files that `trainrig init` is given: their format, rows and amount of text.

Files of at most SAMPLE_BYTES of text are read whole. Of larger ones the beginning is read, and the
amounts are estimated from the sizes of the files.
"""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from trainrig import manifest, storage
from trainrig.corpus.documents import KEPT
from trainrig.corpus.read import input_files
from trainrig.errors import ConfigError, DataError
from trainrig.projects.project_kinds import Role
from trainrig.projects.row_roles import (
    EXAMPLES,
    NOUNS,
    Columns,
    Row,
    extract_text,
    find_roles,
)
from trainrig.storage.missing_folders import is_missing
from trainrig.tokens.document_formats import FORMATS, JSONL_ENDINGS, StagePart

log = logging.getLogger(__name__)
FileFormat = Literal["JSONL", "Parquet", "pages"]
FILE_FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)

FIRST_ROWS = 100  # rows of a file that decide what it holds
SAMPLE_BYTES = 2**21  # bytes of text that are read to measure it
INSPECTED = 50  # files of a folder and format that are opened; the others are taken to be alike
SHOWN = 8  # columns that a message names


@dataclass(frozen=True)
class TextAmount:
    """Rows and text of files, which are estimates if the files are large."""

    rows: int
    bytes: int  # bytes of text, UTF-8
    texts: tuple[str, ...]  # texts of the rows that were read
    whole: bool  # True if all rows were read, so that the numbers are exact


@dataclass(frozen=True)
class FoundData:
    """Files of one format whose rows have the same columns."""

    name: str  # path as the user gave it
    paths: tuple[str, ...]  # absolute paths of files, or of the folder that has no others
    files: tuple[str, ...]
    format: FileFormat
    roles: Mapping[Role, Columns]
    columns: tuple[str, ...] = ()  # columns of the first rows

    def measure(self, role: Role) -> TextAmount:
        """Measure the text of the rows in `role`."""
        if self.format == "pages":
            size = sum(map(storage.measure_size, self.files))
            return TextAmount(len(self.files), size, (), whole=True)
        return _measure_rows(self, role)

    def describe(self, role: Role, amount: TextAmount) -> str:
        """Return one line on the rows of the files and the amount of text in `role`."""
        if self.format == "pages":
            files = "file" if amount.rows == 1 else "files"
            return f"{self.name}: {amount.rows:,} {files} of pages, {_format_size(amount.bytes)}"
        about = "" if amount.whole else "about "
        columns = " and ".join(f"`{column}`" for column in self.roles[role].values())
        where = f" in {columns}" if columns else ""
        size = f"{_format_size(amount.bytes)} of text"
        return f"{self.name}: {about}{amount.rows:,} {NOUNS[role]}{where}, {size}"


def _format_size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.3g} {unit}"
    return f"{count} bytes"


def find_data(paths: Sequence[str]) -> list[FoundData]:
    """Return what the files and folders at `paths` hold, in their order.

    Raises ConfigError for a path without files, and for rows of no known role.
    """
    return [found for path in paths for found in _find_at(path)]


def _find_at(given: str) -> Iterator[FoundData]:
    place = storage.make_absolute(given.rstrip("/") or given)
    if storage.exists(place):
        yield _inspect(given, (place,), (place,), _find_format(place, given))
        return
    place = _find_kept(place)
    there = storage.list_files(place)
    files = _choose_files(given, there)
    if not files:
        empty = "is empty" if storage.list_folders(place) or not is_missing(place) else ""
        problem = "holds no file of a known format" if there else empty or "does not exist"
        raise ConfigError(
            f"--data {given}: {problem}; looked in {place}; give JSON lines, Parquet, WARC, "
            "HTML or text files"
        )
    groups: dict[tuple[FileFormat, tuple[tuple[str, object], ...]], FoundData] = {}
    for file_format in FILE_FORMATS:
        alike = [path for path in files if _find_format(path) == file_format]
        opened = alike if file_format == "pages" else alike[:INSPECTED]
        for number, path in enumerate(opened):
            more = tuple(alike[INSPECTED:]) if number == INSPECTED - 1 else ()
            held = _inspect(given, (path, *more), (path, *more), file_format)
            key = (held.format, tuple(sorted((k, str(v)) for k, v in held.roles.items())))
            if before := groups.get(key):
                held = replace(before, files=before.files + held.files)
            groups[key] = held
    for held in groups.values():
        only = sum(other.format == held.format for other in groups.values()) == 1
        whole = only and (held.format != "pages" or len(groups) == 1)
        yield replace(held, paths=(place,) if whole else held.files)


def _choose_files(given: str, there: Sequence[str]) -> list[str]:
    """Return the files of a folder to use, and say which are left out.

    Text files beside JSON lines or Parquet are notes about them, such as README.md.
    """
    formats = {path: _find_format(path) for path in there}
    rows = {"JSONL", "Parquet"} & set(formats.values())
    chosen = [
        path
        for path, file_format in formats.items()
        if file_format and not (rows and input_files.format_by_name(path) == "text")
    ]
    if left := [path for path in there if path not in set(chosen)]:
        name = left[0].rpartition("/")[2]
        files = "1 file is" if len(left) == 1 else f"{len(left):,} files are"
        log.warning("--data %s: %s left out, such as %s", given, files, name)
    return chosen


def _find_kept(place: str) -> str:
    """Return the folder of kept documents if `place` is the output of `curate`, else `place`."""
    if storage.exists(storage.join(place, manifest.MANIFEST)):
        kept = storage.join(place, KEPT)
        if storage.list_files(kept):
            return kept
    return place


def _find_format(path: str, given: str | None = None) -> FileFormat | None:
    """Return the format of a file by the ending of its name.

    For an unknown ending the result is None, or ConfigError if the user has `given` this file.
    """
    name = path.lower()
    if name.endswith(JSONL_ENDINGS):
        return "JSONL"
    if name.endswith(".parquet"):
        return "Parquet"
    if input_files.format_by_name(name):
        return "pages"
    if given is not None:
        endings = ".jsonl, .parquet, .warc, .html, .txt or .md"
        raise ConfigError(f"--data {given}: the ending of its name is unknown; use {endings}")
    return None


def _inspect(
    given: str, paths: tuple[str, ...], files: tuple[str, ...], file_format: FileFormat | None
) -> FoundData:
    assert file_format is not None  # files of unknown formats are left out or refused before
    if file_format == "pages":
        return FoundData(given, paths, files, "pages", {"pages": {}})
    first = [row for _, row in itertools.islice(_read_rows(file_format, files[0]), FIRST_ROWS)]
    rows = [row for row in first if isinstance(row, Mapping)]
    if not rows:
        found = f"`{first[0]}` in its first line" if first else "no row"
        raise ConfigError(
            f"--data {files[0]}: {file_format} with {found}; write one JSON object on each line, "
            f"such as {EXAMPLES['chats']}"
        )
    roles = find_roles(rows, file_format == "Parquet")
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    if not roles:
        named = ", ".join(f"`{name}`" for name in columns[:SHOWN])
        more = f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
        raise ConfigError(
            f"--data {files[0]}: rows have the columns {named}{more}, which hold no known text, "
            f"chat, pair or problem; rename columns as in {EXAMPLES['documents']}, or "
            f"{EXAMPLES['chats']}, or {EXAMPLES['pairs']}"
        )
    return FoundData(given, paths, files, file_format, roles, columns)


def _read_rows(file_format: FileFormat, path: str) -> Iterator[tuple[int, Row | str]]:
    """Yield (bytes of text in its part, row) for the rows of a file, in order."""
    form = FORMATS[file_format]
    try:
        for cut in form.cut(path, (), 2**62):
            part = StagePart(0, path, path, cut.begin, cut.end, cut.weight, cut.whole)
            for _, row in form.read(part, ()):
                yield cut.weight, row
    except DataError as error:
        raise ConfigError(f"--data {error}") from None


def _measure_rows(found: FoundData, role: Role) -> TextAmount:
    assert found.format != "pages"
    columns = found.roles[role]
    parquet = found.format == "Parquet"
    texts: list[str] = []
    unread: list[str] = []
    read = 0
    seen = 0.0  # bytes of files that were read, as `cut` weighs them
    full = False
    for path in found.files:
        weight = 0
        here = 0
        for of_part, row in _read_rows(found.format, path):
            weight = max(weight, of_part)
            if isinstance(row, str):
                unread.append(path)
                continue
            if not (text := extract_text(role, columns, row, parquet)):
                continue
            texts.append(text)
            here += len(text.encode("utf-8", "replace"))
            if full := read + here >= SAMPLE_BYTES:
                break
        read += here
        seen += min(here, weight) if full else weight
        if full:
            break
    if unread and role == "problems":
        raise ConfigError(
            f"--data {unread[0]}: {len(unread):,} lines are no JSON objects, and `rl` reads no "
            "file with such lines; remove them"
        )
    total = sum(cut.weight for p in found.files for cut in FORMATS[found.format].cut(p, (), 2**62))
    scale = max(1.0, total / seen) if full and seen else 1.0
    return TextAmount(round(len(texts) * scale), round(read * scale), tuple(texts), whole=not full)


def name_source(found: FoundData, taken: set[str]) -> str:
    """Return a new name for the source of a mixture, made of the file's name; add it to `taken`."""
    stem = Path(found.name.rstrip("/")).name.partition(".")[0]
    base = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in stem)
    base = base.strip("-") or "data"
    numbered = (f"{base}-{number}" for number in itertools.count(2))
    name = next(name for name in itertools.chain([base], numbered) if name not in taken)
    taken.add(name)
    return name
