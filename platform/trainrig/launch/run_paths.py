"""The places that a run file names: what it reads, and what it writes.

They are its fields marked PLACE that hold text. A choice between words (a Literal) is none.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin

from trainrig import storage
from trainrig.config import PLACE, Settings, dotted
from trainrig.corpus.read import files_of
from trainrig.errors import DataError

# Written, or made where they are missing. The first one only is the output.
WRITTEN = {"output", "copy_to", "cache"}
CACHES = {"BlockCache"}  # their folder is this machine's own

Run = TypeVar("Run", bound=Settings)


@dataclass(frozen=True)
class Place:
    """One path of a run file."""

    key: str  # as `training.checkpoints.copy_to`
    path: str
    written: bool


def places(run: Settings) -> list[Place]:
    """All of them, in the order of the fields."""
    return list(_places(run, ()))


def _places(settings: Settings, at: tuple[str | int, ...]) -> Iterator[Place]:
    for name, value in _values(settings):
        here = (*at, name)
        if name in _texts(settings):
            written = name in WRITTEN or type(settings).__name__ in CACHES
            for part, path in _strings(value):
                yield Place(dotted((*here, *part)), path, written)
        for part, inner in _inner(value):
            yield from _places(inner, (*here, *part))


def with_absolute_paths(run: Run) -> Run:
    """`run`, in which no path depends on the folder that it is read in."""
    changed: dict[str, Any] = {}
    for name, value in _values(run):
        if name in _texts(run):
            new = _mapped(value, lambda v: storage.absolute(v) if isinstance(v, str) else v)
        else:
            new = _mapped(value, lambda v: with_absolute_paths(v) if isinstance(v, Settings) else v)
        if new != value:
            changed[name] = new
    return run.model_copy(update=changed) if changed else run


def _values(settings: Settings) -> list[tuple[str, Any]]:
    return [(name, getattr(settings, name)) for name in type(settings).model_fields]


def _texts(settings: Settings) -> set[str]:
    """The names of its fields that hold paths."""
    return {
        name
        for name, field in type(settings).model_fields.items()
        if PLACE in field.metadata and get_origin(field.annotation) is not Literal
        if _holds_text(field.annotation)
    }


def _holds_text(annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return False
    return annotation is str or any(map(_holds_text, get_args(annotation)))


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_mapped(item, change) for item in value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    return change(value)


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
