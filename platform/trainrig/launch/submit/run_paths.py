"""The places that a run file names: what it reads, and what it writes.

They are its fields marked NOT_IDENTITY that hold text. A choice between words (a Literal) is none.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainrig import storage
from trainrig.config import Settings, dotted
from trainrig.config.absolute_paths import texts, values, with_absolute_paths
from trainrig.corpus.read import files_of
from trainrig.errors import DataError

# Written, or made where they are missing. The first one only is the output.
WRITTEN = {"output", "copy_to", "cache"}
CACHES = {"BlockCache"}  # their folder is this machine's own

__all__ = ["NamedPath", "find_paths", "is_there", "with_absolute_paths"]


@dataclass(frozen=True)
class NamedPath:
    """One path of a run file."""

    key: str  # as `training.checkpoints.copy_to`
    path: str
    written: bool


def find_paths(run: Settings) -> list[NamedPath]:
    """All of them, in the order of the fields."""
    return list(_find_paths(run, ()))


def _find_paths(settings: Settings, at: tuple[str | int, ...]) -> Iterator[NamedPath]:
    for name, value in values(settings):
        here = (*at, name)
        if name in texts(settings):
            written = name in WRITTEN or type(settings).__name__ in CACHES
            for part, path in _strings(value):
                yield NamedPath(dotted((*here, *part)), path, written)
        for part, inner in _inner(value):
            yield from _find_paths(inner, (*here, *part))


def _strings(value: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    return ((part, leaf) for part, leaf in _leaves(value) if isinstance(leaf, str))


def _inner(value: Any) -> Iterator[tuple[tuple[str | int, ...], Settings]]:
    return ((part, leaf) for part, leaf in _leaves(value) if isinstance(leaf, Settings))


def _leaves(value: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from (((index, *part), leaf) for part, leaf in _leaves(item))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (((key, *part), leaf) for part, leaf in _leaves(item))
    else:
        yield (), value


def is_there(path: str) -> bool:
    """Whether `path` names a file, a folder with something in it, or a pattern that finds some."""
    if storage.exists(path):
        return True
    if any(sign in path for sign in "*?["):
        with contextlib.suppress(DataError):
            return bool(files_of([path]))
        return False
    return bool(storage.list_files(path))
