"""Paths that a run file names: the inputs that it reads and the outputs that it writes.

Paths are the text fields marked NOT_IDENTITY (input), OUTPUT, CACHE or SHIPPED. A choice between
words (a Literal) is not a path.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainrig import storage
from trainrig.config import (
    CACHE,
    OUTPUT,
    Settings,
    find_path_fields,
    format_location,
    list_fields,
    with_absolute_paths,
)
from trainrig.config.field_marks import SHIPPED
from trainrig.corpus.read import find_files
from trainrig.errors import DataError

__all__ = [
    "NamedPath",
    "Use",
    "find_paths",
    "is_there",
    "with_absolute_paths",
]


Use = Literal["input", "output", "cache", "shipped"]


@dataclass(frozen=True)
class NamedPath:
    """One path of a run file."""

    key: str  # such as `training.checkpoints.copy_to`
    path: str
    use: Use


def find_paths(run: Settings) -> list[NamedPath]:
    """Return all paths of a run file, in the order of its fields."""
    return list(_find_paths(run, ()))


def _find_paths(settings: Settings, at: tuple[str | int, ...]) -> Iterator[NamedPath]:
    for name, value in list_fields(settings):
        here = (*at, name)
        if name in find_path_fields(settings):
            use = _use(type(settings).model_fields[name].metadata)
            for part, path in _iterate_strings(value):
                yield NamedPath(format_location((*here, *part)), path, use)
        for part, inner in _iterate_settings(value):
            yield from _find_paths(inner, (*here, *part))


def _use(marks: Sequence[Any]) -> Use:
    if OUTPUT in marks:
        return "output"
    if SHIPPED in marks:
        return "shipped"
    return "cache" if CACHE in marks else "input"


def _iterate_strings(value: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    return ((part, leaf) for part, leaf in _iterate_leaves(value) if isinstance(leaf, str))


def _iterate_settings(value: Any) -> Iterator[tuple[tuple[str | int, ...], Settings]]:
    return ((part, leaf) for part, leaf in _iterate_leaves(value) if isinstance(leaf, Settings))


def _iterate_leaves(value: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from (((index, *part), leaf) for part, leaf in _iterate_leaves(item))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (((key, *part), leaf) for part, leaf in _iterate_leaves(item))
    else:
        yield (), value


def is_there(path: str) -> bool:
    """Return whether `path` is a file, a folder with files, or a pattern that matches one."""
    if storage.exists(path):
        return True
    if any(sign in path for sign in "*?["):
        with contextlib.suppress(DataError):
            return bool(find_files([path]))
        return False
    return bool(storage.list_files(path))
