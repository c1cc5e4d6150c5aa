"""Files copied next to a run's record, from where every machine reads them."""

import hashlib
from collections.abc import Mapping
from typing import Any, TypeVar

from trainrig import storage
from trainrig.config import Settings, list_fields
from trainrig.config.field_marks import SHIPPED

Run = TypeVar("Run", bound=Settings)


def with_shipped_files(run: Run, folder: str) -> tuple[Run, dict[str, bytes]]:
    """Return `run` with its SHIPPED files moved to `folder`, and their contents by new path.

    The new path contains a hash of the content, so a changed file gets another path.
    """
    files: dict[str, bytes] = {}
    return _with_shipped(run, folder, files), files


def _with_shipped(settings: Run, folder: str, files: dict[str, bytes]) -> Run:
    changed: dict[str, Any] = {}
    for name, value in list_fields(settings):
        if SHIPPED in type(settings).model_fields[name].metadata and isinstance(value, str):
            data = storage.read(value)
            short = hashlib.sha256(data).hexdigest()[:16]
            there = storage.join(folder, short, value.rpartition("/")[2])
            files[there] = data
            changed[name] = there
        else:
            new = _map_paths(value, folder, files)
            if new != value:
                changed[name] = new
    return settings.model_copy(update=changed) if changed else settings


def _map_paths(value: Any, folder: str, files: dict[str, bytes]) -> Any:
    if isinstance(value, Settings):
        return _with_shipped(value, folder, files)
    if isinstance(value, tuple):
        return tuple(_map_paths(item, folder, files) for item in value)
    if isinstance(value, Mapping):
        return {key: _map_paths(item, folder, files) for key, item in value.items()}
    return value
