"""Reader of benchmark texts from JSON Lines files."""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig import manifest, storage
from trainrig.config import suggest_choice
from trainrig.corpus.decontaminate.settings import Benchmark, Decontamination, Llama3
from trainrig.errors import DataError

ENDINGS = (".jsonl", ".jsonl.gz")
NAMED = 10  # most benchmarks listed in an error message
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Examples:
    """The examples of one benchmark."""

    name: str
    lines: tuple[int, ...]  # line of each example in its file, from 1
    texts: tuple[tuple[str, ...], ...]  # texts of each example


def list_benchmarks(settings: Decontamination) -> list[Benchmark]:
    """Return all benchmarks: the listed ones, then the files of the folder, sorted by name.

    Raises DataError if the folder holds no benchmark, if a file in it has no `fields`, if two
    benchmarks share a name, or if a threshold names an unknown benchmark.
    """
    found = list(settings.benchmarks)
    if settings.folder is not None:
        found += _list_folder(settings.folder, dict(settings.fields))
    names = [benchmark.name for benchmark in found]
    for name in names:
        if names.count(name) > 1:
            raise DataError(
                f"decontamination: {names.count(name)} benchmarks are named '{name}'; give each "
                "a different name"
            )
    if isinstance(settings.style, Llama3):
        for name in settings.style.thresholds:
            if name not in names:
                raise DataError(
                    f"decontamination: style.thresholds: no benchmark is named '{name}'"
                    f"{suggest_choice(name, names)}"
                )
    return found


def _list_folder(folder: str, fields: dict[str, tuple[str, ...]]) -> list[Benchmark]:
    paths = {
        path.rpartition("/")[2].removesuffix(".gz").removesuffix(".jsonl"): path
        for path in storage.list_files(folder)
        if path.endswith(ENDINGS)
    }
    if not paths:
        raise DataError(
            f"{folder}: the folder contains no benchmark, that is no file that ends in .jsonl or "
            ".jsonl.gz"
        )
    for name in fields:
        if name not in paths:
            raise DataError(
                f"{folder}: `fields` names '{name}', but the folder has no such benchmark"
                f"{suggest_choice(name, sorted(paths))}"
            )
    missing = sorted(set(paths) - set(fields))
    if missing:
        told = "; ".join(_format_fields_line(name, paths[name]) for name in missing[:NAMED])
        more = f"; and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise DataError(
            f"{folder}: `fields` lacks {len(missing)} of its {len(paths)} benchmarks; add a line "
            f"for each, with the fields to use of these fields with text: {told}{more}"
        )
    return [Benchmark(name=name, path=paths[name], fields=fields[name]) for name in sorted(paths)]


def _format_fields_line(name: str, path: str) -> str:
    """Return a line for the `fields` setting that lists all text fields of the file at `path`."""
    texts = ", ".join(f'"{key}"' for key in _list_text_fields(next(_read_objects(path))[1]))
    return f"{json.dumps(name)} = [{texts}]"


def fingerprint(settings: Decontamination) -> str:
    """Return a fingerprint of the benchmarks: names, fields and contents of their files.

    The settings only name the files, so this fingerprint must be part of the inputs of a run.

    Raises DataError if a file cannot be read.
    """
    found = list_benchmarks(settings)
    for benchmark in found:
        if not storage.exists(benchmark.path):
            _read_content(benchmark.path)  # raises DataError with the cause
    return manifest.digest(
        [
            (
                benchmark.name,
                benchmark.fields,
                benchmark.joined,
                storage.compute_content_key(benchmark.path),
            )
            for benchmark in found
        ]
    )


def check_examples(settings: Decontamination) -> None:
    """Raise DataError if a benchmark cannot be read, hours before its examples are needed."""
    for benchmark in list_benchmarks(settings):
        read_examples(benchmark)


def read_examples(benchmark: Benchmark) -> Examples:
    """Return the examples of one benchmark file.

    Raises DataError with the file and line if a line is not a valid example, or if a field is empty
    in all examples.
    """
    lines = []
    texts = []
    seen = dict.fromkeys(benchmark.fields, False)
    for number, row in _read_objects(benchmark.path):
        example: list[str] = []
        for field in benchmark.fields:
            found = [
                text for text in _iterate_texts(row, field, f"{benchmark.path}: line {number}")
            ]
            seen[field] |= any(text.strip() for text in found)
            example += found
        lines.append(number)
        texts.append((" ".join(example),) if benchmark.joined else tuple(example))
    for field, has_text in seen.items():
        if not has_text:
            raise DataError(f"{benchmark.path}: '{field}' is empty in all {len(lines):,} examples")
    return Examples(benchmark.name, tuple(lines), tuple(texts))


def _read_objects(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number (from 1) and the JSON object of each line that is not blank."""
    empty = True
    for number, line in enumerate(
        _read_content(path).removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1
    ):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode())
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: line {number}: not UTF-8 at byte {error.start}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}: line {number}: not JSON ({error}); write one JSON object per line"
            ) from None
        if not isinstance(row, dict):
            raise DataError(
                f"{path}: line {number}: a JSON {type(row).__name__}; write a JSON object"
            )
        empty = False
        yield number, row
    if empty:
        raise DataError(f"{path}: the file is empty; a benchmark has one JSON object per line")


def _read_content(path: str) -> bytes:
    try:
        content = storage.read(path)
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; a benchmark is a file of JSON Lines") from None
    except IsADirectoryError:
        raise DataError(
            f"{path}: this is a folder; set `folder` of [decontamination] to it"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _iterate_texts(row: dict[str, Any], field: str, where: str) -> Iterator[str]:
    values: Sequence[Any] = (row,)
    there = False
    for key in field.split("."):
        inner = [value for value in _flatten(values) if isinstance(value, dict) and key in value]
        there = bool(inner)
        values = [value[key] for value in inner]
    if not there:
        known = sorted(_list_text_fields(row))
        raise DataError(f"{where}: the row has no field '{field}'{suggest_choice(field, known)}")
    for value in _flatten(values):
        if isinstance(value, dict | bool):
            raise DataError(f"{where}: '{field}' is a {_IN_JSON[type(value)]}, not a text")
        if value is not None:
            yield str(value)


_IN_JSON = {dict: "table (name a field of it as a.b)", bool: "truth value"}


def _flatten(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _flatten(value)
        else:
            yield value


def _list_text_fields(row: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the names of all fields of `row` that hold a string; nested fields are named "a.b"."""
    found: dict[str, None] = {}
    for key, value in row.items():
        for inner in _flatten([value]):
            if isinstance(inner, str):
                found[prefix + key] = None
            elif isinstance(inner, dict):
                found |= dict.fromkeys(_list_text_fields(inner, f"{prefix}{key}."))
    return list(found)
