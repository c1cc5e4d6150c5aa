"""Conversion of a run file's paths to absolute ones, which mean the same in any directory."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

from trainrig import storage
from trainrig.config import Settings
from trainrig.config.field_marks import NotIdentity

Run = TypeVar("Run", bound=Settings)


def with_absolute_paths(run: Run) -> Run:
    """Return a copy of `run` with all paths absolute, in its inner tables too."""
    changed: dict[str, Any] = {}
    for name, value in list_fields(run):
        if name in find_path_fields(run):
            new = _map_paths(value, lambda v: storage.make_absolute(v) if isinstance(v, str) else v)
        else:
            new = _map_paths(
                value, lambda v: with_absolute_paths(v) if isinstance(v, Settings) else v
            )
        if new != value:
            changed[name] = new
    return run.model_copy(update=changed) if changed else run


def list_fields(settings: Settings) -> list[tuple[str, Any]]:
    """Return the name and value of each field of `settings`."""
    return [(name, getattr(settings, name)) for name in type(settings).model_fields]


def find_path_fields(settings: Settings) -> set[str]:
    """Return the names of the fields of `settings` that hold paths."""
    return {
        name
        for name, field in type(settings).model_fields.items()
        if any(isinstance(mark, NotIdentity) for mark in field.metadata)
        if _holds_text(field.annotation)
    }


def _holds_text(annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return False
    return annotation is str or any(map(_holds_text, get_args(annotation)))


def _map_paths(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_map_paths(item, change) for item in value)
    if isinstance(value, Mapping):
        return {key: _map_paths(item, change) for key, item in value.items()}
    return change(value)
