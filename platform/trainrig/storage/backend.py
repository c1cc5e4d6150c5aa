"""The interface of one kind of storage, which `storage` calls for locations of its scheme.

A new kind is a class with this interface in a file of its own, and one name in `schemes.SCHEMES`.
Stores of objects in buckets derive from `bucket_files.BucketFiles`, which needs a few requests.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from trainrig.errors import ClusterError

# Bytes of a ranged read. A bucket serves a stream at its full rate from about this size on.
READ_BLOCK = 8 * 2**20


def is_file_name(path: str) -> bool:
    """Return whether `path` names a file that is neither hidden nor a console's mark of a folder.

    S3's console represents an empty folder by an object whose key ends in "/".
    """
    return path[-1] != "/" and path.rpartition("/")[2][0] != "."


class NothingThere(ClusterError):
    """A requested byte range begins at the end of its object, or beyond."""


class Backend(Protocol):
    """One kind of storage. The functions of `storage` say what each method promises.

    The methods for many files are loops here, which a storage with requests overrides.
    """

    is_remote: bool  # False if locations are paths of this machine's file system

    def read(self, path: str) -> bytes:
        """Return all bytes of the file at `path`. Raises FileNotFoundError."""

    def read_range(self, path: str, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` up to, but excluding, `end`. Raises FileNotFoundError."""

    def read_into(self, path: str, begin: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `begin` on, and return the number of bytes read."""

    def open_read(self, path: str) -> BinaryIO:
        """Open the file at `path` as a seekable binary stream. Raises FileNotFoundError."""

    def open_for_arrow(self, path: str) -> Any:
        """Open the file at `path` for Arrow's readers. Raises FileNotFoundError."""

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Write `data` to `path` atomically, replacing an existing file."""

    def create(self, path: str, data: bytes) -> bool:
        """Write `data` only if no file is there; return whether this call wrote the file."""

    def atomic_file(self, path: str) -> AbstractContextManager[str]:
        """Yield a local file name, and publish the file at `path` if the block succeeds."""

    def measure_size(self, path: str) -> int:
        """Return the size of the file at `path`, in bytes. Raises FileNotFoundError."""

    def compute_content_key(self, path: str) -> str:
        """Return a string that changes when the content of `path` changes."""

    def find_first(self, folder: str) -> str | None:
        """Return the first file below `folder` by location, but no hidden one; None without one."""

    def list_files(self, folder: str) -> Iterable[str]:
        """Return the locations of all files below `folder`, also of hidden ones, unsorted."""

    def list_sizes(self, folder: str) -> dict[str, int]:
        """Return the size of each file below `folder` by location, also of hidden ones."""

    def list_folders(self, folder: str) -> list[str]:
        """Return the direct subfolders of `folder`, unsorted."""

    def delete(self, path: str) -> None:
        """Remove the file at `path` if it exists."""

    def move(self, path: str, target: str) -> None:
        """Move the file at `path` to `target` of the same storage, replacing an existing file."""

    def delete_folder(self, folder: str) -> None:
        """Remove `folder` and everything below it, if the folder exists."""

    def fetch_local_path(self, path: str) -> Path:
        """Return the path of a local file with the content of `path`."""

    def measure_sizes(self, paths: Sequence[str]) -> dict[str, int]:
        """Return the size in bytes of each file among `paths`, by location."""
        found = {}
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                found[path] = self.measure_size(path)
        return found

    def compute_content_keys(self, paths: Sequence[str]) -> list[str]:
        """Return the content key of each of `paths`, in order. Raises FileNotFoundError."""
        return [self.compute_content_key(path) for path in paths]

    def delete_files(self, paths: Sequence[str]) -> None:
        """Remove the files of `paths` that exist, in any order."""
        for path in paths:
            self.delete(path)

    def move_files(self, targets: Mapping[str, str]) -> None:
        """Move each file to its target of the same storage, replacing existing files."""
        for path, target in targets.items():
            self.move(path, target)
