"""Work on many files at once, which in a bucket takes few requests, or requests side by side.

On a disk these functions do the same as a loop. Locations of several kinds of storage may be mixed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from trainrig.storage.backend import Backend
from trainrig.storage.concurrent_requests import map_concurrently
from trainrig.storage.schemes import find_backend, is_remote, resolve, split_scheme

Result = TypeVar("Result")


def map_files(action: Callable[[str], Result], paths: Sequence[str]) -> Iterator[Result]:
    """Yield `action(path)` for each of `paths`, in order; for files in buckets by threads.

    The first error, in the order of `paths`, is raised.
    """
    if any(is_remote(path) for path in paths):
        return map_concurrently(action, paths)
    return map(action, paths)


def read_files(paths: Sequence[str]) -> Iterator[bytes]:
    """Yield the bytes of each of `paths`, in order. Raises FileNotFoundError."""

    def read(path: str) -> bytes:
        return find_backend(path).read(resolve(path))

    return map_files(read, paths)


def measure_sizes(paths: Iterable[str]) -> dict[str, int]:
    """Return the size in bytes of each file among `paths`, by location.

    In a bucket one LIST request measures up to 1,000 files of a folder.
    """
    paths = list(dict.fromkeys(paths))
    found: dict[str, int] = {}
    for backend, part in _group_by_storage(paths):
        sizes = backend.measure_sizes([resolve(path) for path in part])
        found |= {path: sizes[resolve(path)] for path in part if resolve(path) in sizes}
    return {path: found[path] for path in paths if path in found}


def compute_content_keys(paths: Sequence[str]) -> list[str]:
    """Return the content key of each of `paths`, in order. Raises FileNotFoundError.

    The keys are those of `compute_content_key`. On S3 one LIST request finds up to 1,000 of them.
    """
    found: dict[str, str] = {}
    for backend, part in _group_by_storage(paths):
        keys = backend.compute_content_keys([resolve(path) for path in part])
        found |= dict(zip(part, keys, strict=True))
    return [found[path] for path in paths]


def delete_files(paths: Iterable[str]) -> None:
    """Remove the files of `paths` that exist, in any order.

    S3 removes up to 1,000 of them by one request. Raises ClusterError if one could not be removed;
    the others of the same request are then removed nevertheless.
    """
    for backend, part in _group_by_storage(paths):
        backend.delete_files([resolve(path) for path in part])


def move_files(targets: Mapping[str, str]) -> None:
    """Move each file to its target, on the same kind of storage, replacing existing files.

    After an interruption, a file is at its place, at its target or at both, and can be moved again.
    """
    for backend, part in _group_by_storage(targets):
        backend.move_files({resolve(path): resolve(targets[path]) for path in part})


def _group_by_storage(paths: Iterable[str]) -> Iterator[tuple[Backend, list[str]]]:
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(split_scheme(path)[0], []).append(path)
    for part in groups.values():
        yield find_backend(part[0]), part
