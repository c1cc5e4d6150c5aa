"""Finds the input files that a source's paths and patterns name."""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from trainrig import storage
from trainrig.errors import DataError
from trainrig.storage.missing_folders import describe_origin

# Name endings that are read from a folder; a saved site has images and styles as well.
PACKED = (".gz", ".zst", ".zstd", ".bz2", ".xz")
NAMES = {
    "warc": (".warc", ".wet", ".wat"),
    "arc": (".arc",),
    "jsonl": (".jsonl", ".ndjson"),
    "json": (".json",),
    "parquet": (".parquet",),
    "text": (".txt", ".text", ".md", ".markdown", ".rst"),
    "html": (".html", ".htm", ".xhtml"),
}

# Names of notes about the data of a folder, without their endings.
_NOTES = frozenset(
    {
        *("readme", "license", "licence", "copying", "notice", "changelog", "changes", "authors"),
        *("citation", "contributing", "code_of_conduct", "security", "dataset_card"),
    }
)
_ROWS = frozenset({"warc", "arc", "jsonl", "parquet"})  # beside them, .json files describe them


@dataclass(frozen=True)
class File:
    """One input file; `name` is its path below the fixed part of the pattern, and may be output."""

    path: str
    name: str
    bytes: int


@dataclass(frozen=True)
class FoundFiles:
    """The files of a source, and the files of its folders that are not read."""

    files: list[File]  # sorted by name
    passed_over: list[str]  # paths, sorted

    def describe_passed_over(self) -> str | None:
        """Describe which files are not read, and what would make them read; None if all are."""
        if not self.passed_over:
            return None
        first = ", ".join(self.passed_over[:PASSED_OVER_NAMED])
        more = ", …" if len(self.passed_over) > PASSED_OVER_NAMED else ""
        folder = self.passed_over[0].rpartition("/")[0]
        ending = self.passed_over[0].rpartition("/")[2].partition(".")[2]
        return (
            f"{format_files(len(self.passed_over))} passed over, as a folder's files are "
            f"read only under the names of formats, or the file seems to be a note about the "
            f"data: {first}{more}; to read them, name them "
            f"in `paths` (such as {folder}/*{'.' + ending if ending else ''}) and set `format`"
        )


PASSED_OVER_NAMED = 5  # names of files in a message and in the manifest


def format_files(number: int) -> str:
    """Return "1 file is" or "1,234 files are"."""
    return "1 file is" if number == 1 else f"{number:,} files are"


def find_files(patterns: Sequence[str]) -> list[File]:
    """Return the files of `find_inputs`."""
    return find_inputs(patterns).files


def find_inputs(patterns: Sequence[str]) -> FoundFiles:
    """Find the files that paths, patterns and folders name, sorted by name without repetitions.

    In patterns `*`, `?` and `[` are wildcards, and `*` matches `/` as well. Of a folder, only files
    with an ending in NAMES are read. Raises DataError for a path or pattern without files.
    """
    patterns = [_normalise(pattern) for pattern in patterns]
    sizes = storage.measure_sizes(patterns)
    found: dict[str, File] = {}
    passed_over: set[str] = set()
    for pattern in patterns:
        if pattern in sizes:
            matching = [File(pattern, pattern.rpartition("/")[2], sizes[pattern])]
        else:
            matching, others = _find_matching(pattern)
            passed_over.update(others)
        for file in matching:
            known = found.get(file.path)
            if known is None or file.name < known.name:
                found[file.path] = file
    files = sorted(found.values(), key=lambda file: (file.name, file.path))
    return FoundFiles(files, sorted(passed_over - set(found)))


def read_first_bytes(path: str, count: int) -> bytes:
    """Return the first `count` bytes of the file at `path`, or all; from S3 no more is fetched."""
    buffer = bytearray(count)
    return bytes(buffer[: storage.read_into(path, 0, memoryview(buffer))])


def format_by_name(name: str) -> str | None:
    """Return the format of a file by the ending of its name (a key of NAMES), or None."""
    name = name.lower()
    for suffix in PACKED:
        name = name.removesuffix(suffix)
    endings = ((kind, ending) for kind, kind_endings in NAMES.items() for ending in kind_endings)
    return next((kind for kind, ending in endings if name.endswith(ending)), None)


def _normalise(pattern: str) -> str:
    """Return the one way to write a path: "./a" and "a" are the same file."""
    return pattern if storage.is_remote(pattern) else str(Path(storage.resolve(pattern)))


def _find_matching(pattern: str) -> tuple[list[File], list[str]]:
    """Return the files of a pattern or a folder, and the files of the folder that are not read."""
    wild = min((pattern.find(sign) for sign in "*?[" if sign in pattern), default=None)
    if wild is None:
        return _list_folder(pattern)
    folder = pattern[:wild].rpartition("/")[0]
    sizes = _list_sizes(folder)
    found = [path for path in sizes if fnmatch.fnmatchcase(path, pattern)]
    if not found:
        raise DataError(
            f"{pattern}: the pattern matches no file below {folder or '.'} ({len(sizes):,} found "
            f"there){describe_origin(pattern)}"
        )
    return [File(path, _strip_folder(folder, path), sizes[path]) for path in found], []


def _list_folder(folder: str) -> tuple[list[File], list[str]]:
    sizes = _list_sizes(folder)
    if not sizes:
        origin = describe_origin(folder)
        raise DataError(
            f"{folder}: no such file or folder with files{origin}; name files, folders or "
            "patterns with * in `paths`"
        )
    formats = {path: format_by_name(path) for path in sizes}
    found = [path for path, format_ in formats.items() if format_]
    found = _drop_descriptions({path: cast(str, formats[path]) for path in found})
    if not found:
        endings = " ".join(ending for kind_endings in NAMES.values() for ending in kind_endings)
        raise DataError(
            f"{folder}: no file of this folder ({len(sizes):,} found) has a known ending "
            f"({endings}); name the files by a pattern and set `format`"
        )
    files = [File(path, _strip_folder(folder, path), sizes[path]) for path in found]
    return files, sorted(set(sizes) - set(found))


def _drop_descriptions(formats: Mapping[str, str]) -> list[str]:
    """Return the paths of `formats` without notes and .json files that describe other files."""
    data = {path: format_ for path, format_ in formats.items() if _name_stem(path) not in _NOTES}
    kinds = set(data.values())
    if kinds & _ROWS or kinds == {"json"}:
        rows = kinds & _ROWS
        return [path for path, format_ in data.items() if format_ != "json" or not rows]
    if kinds:  # beside pages and texts, "dataset_info.json" describes them
        return [path for path in formats if not path.lower().endswith(".json")]
    return list(formats)


def _name_stem(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0].lower()


def _list_sizes(folder: str) -> dict[str, int]:
    sizes = storage.list_sizes(folder or ".")
    return sizes if folder else {path.removeprefix("./"): size for path, size in sizes.items()}


def _strip_folder(folder: str, path: str) -> str:
    return path.removeprefix(f"{folder.rstrip('/')}/") if folder else path
