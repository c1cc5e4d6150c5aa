"""Paths that a run file names, missing inputs and packages, and whether the output can be written.

Paths are the text fields marked NOT_IDENTITY (input), OUTPUT, CACHE or SHIPPED. A choice between
words (a Literal) is not a path.

The output folder is checked before the inputs are read. `manifest.claim` decides later: it also
compares the contents of the inputs. `submit` refuses a run with a missing input. `check` only
reports it, because an earlier stage may still have to make the input, and the run may be meant for
another machine.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from trainrig import manifest, storage
from trainrig.config import (
    CACHE,
    OUTPUT,
    RunFile,
    Settings,
    extract_identity,
    find_path_fields,
    format_location,
    list_fields,
)
from trainrig.config.field_marks import SHIPPED
from trainrig.corpus.read import find_files
from trainrig.errors import ClusterError, ConfigError, DataError, OutputTaken, TrainrigError
from trainrig.manifest import MANIFEST, Manifest
from trainrig.scaling.sweep.sweep_run_file import Sweep
from trainrig.storage.missing_folders import describe_origin
from trainrig.storage.writable import check_folder
from trainrig.train.run_file.training_settings import Training

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
        if name in find_path_fields(type(settings)):
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
    return bool(storage.find_first(path))


def check_output(run: RunFile, folder: str) -> Manifest | None:
    """Return the manifest in `folder` if `run` has finished there; None if there is work left.

    Raises OutputTaken if the folder holds another run or other files, DataError for damaged
    records.
    """
    if storage.exists(folder):
        raise OutputTaken(f"{folder}: this is a file; choose another `output`")
    found = manifest.read_claim(folder)
    if found is None:
        _check_empty(folder)
        return None
    if done := storage.exists(storage.join(folder, MANIFEST)):
        found = manifest.read_manifest(folder)
    here = extract_identity(run)
    lasting = extract_identity(run, extendable=False)
    whole = done and not run.extends_finished
    there = found.config if whole else _drop_extendable(found.config, here, lasting)
    different = manifest.describe_table_difference(
        {"stage": found.stage, **there}, {"stage": run.verb, **(here if whole else lasting)}
    )
    if different:
        raise OutputTaken(
            f"{folder}: made by another run ({different}); choose another `output`, or "
            "delete that folder"
        )
    same = not manifest.describe_table_difference(found.config, here)
    return found if isinstance(found, Manifest) and same else None


def _check_empty(folder: str) -> None:
    if files := storage.list_files(folder):
        raise OutputTaken(
            f"{folder}: holds files that no stage made ({files[0].rpartition('/')[2]}, …); choose "
            "another `output`"
        )


def _drop_extendable(there: Any, whole: Any, lasting: Any) -> Any:
    """Return `there` without the fields marked EXTENDABLE: those in `whole`, but not `lasting`."""
    if all(isinstance(table, Mapping) for table in (there, whole, lasting)):
        return {
            key: _drop_extendable(value, whole.get(key), lasting.get(key))
            for key, value in there.items()
            if key not in whole or key in lasting
        }
    if all(isinstance(part, list) for part in (there, whole, lasting)):
        known = [_drop_extendable(*parts) for parts in zip(there, whole, lasting, strict=False)]
        return [*known, *there[len(known) :]]
    return there


MOUNTS = "/proc/self/mounts"
# File systems that several machines can mount, by their names in Linux.
SHARED = ("nfs", "nfs4", "lustre", "ceph", "beegfs", "gpfs", "glusterfs", "cifs", "smb3", "afs")


def check_writable(folder: str) -> None:
    """Raise ConfigError or DataError if `folder` cannot be written to.

    The folder need not exist. In a bucket, an object is created, on condition that none has its
    name (as runs do for locks and manifests), and deleted.
    """
    if not storage.is_remote(folder):
        check_folder(folder)
        return
    probe = storage.join(folder, f".probe-{secrets.token_hex(8)}")
    try:
        storage.create(probe, probe.encode())
        storage.delete(probe)
    except DataError:
        raise  # the bucket does not exist
    except ClusterError as error:
        raise ConfigError(f"{folder}: cannot be written to from this machine: {error}") from None


def find_shared_disk(path: str) -> str | None:
    """Return the file system of `path` as "type (source)", or None if machines cannot share it."""
    try:
        lines = Path(MOUNTS).read_text().splitlines()
    except OSError:
        return None
    mounts = [line.split()[:3] for line in lines]
    containing = [mount for mount in mounts if _is_below(path, mount[1].replace("\\040", " "))]
    if not containing:
        return None
    source, _, kind = max(containing, key=lambda mount: len(mount[1]))
    return f"{kind} ({source})" if kind in SHARED or kind.startswith("fuse.") else None


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def find_input_problems(run: RunFile) -> Iterator[str]:
    """Yield a line for each input of `run` that does not exist, and for each missing package."""
    for place in find_paths(run):
        if place.use in ("input", "shipped"):
            yield from _find_problem(place)
    for check in _list_package_checks(run):
        try:
            check()
        except TrainrigError as error:
            yield str(error)


def _list_package_checks(run: RunFile) -> Iterator[Callable[[], None]]:
    training = getattr(run, "training", None)
    for sink in training.metrics.sinks if isinstance(training, Training) else ():
        yield partial(sink.check, run.output)
    if isinstance(run, Sweep) and run.search:
        yield run.search.searcher.check


def _find_problem(place: NamedPath) -> Iterator[str]:
    try:
        with storage.briefly():
            there = is_there(place.path)
    except (TrainrigError, OSError) as error:
        yield f"{place.key}: {error}"
        return
    if not there:
        pattern = any(sign in place.path for sign in "*?[")
        what = "no file matches" if pattern else "does not exist"
        yield f"{place.key}: {place.path}: {what}{describe_origin(place.path)}"
