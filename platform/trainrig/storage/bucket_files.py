"""What all stores of objects in buckets have in common: files made of a few kinds of requests."""

import abc
import contextlib
import hashlib
import io
import itertools
import logging
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from trainrig.errors import ClusterError, DataError
from trainrig.storage import local_files
from trainrig.storage.backend import READ_BLOCK, Backend, NothingThere, is_file_name
from trainrig.storage.concurrent_requests import map_concurrently

log = logging.getLogger(__name__)
# Number of attempts to read a body that is cut off, or to create an object that another writer is
# creating.
ATTEMPTS = 10
PART = 16 * 2**20  # bytes of one part of an upload; S3 takes 10,000 parts, which makes 160 GiB
DELETED_AT_ONCE = 1_000  # keys that S3 takes in one request to delete
# A folder is listed to describe more files than this. The listing is given up after one page for
# each PAGE_WORTH files, because the folder may hold many times more files than are asked for.
FEW = 3
PAGE_WORTH = 16
UPLOADS = 4  # parts of one file that are uploaded concurrently

Result = TypeVar("Result")
Described = tuple[int, str]
"""Size in bytes and ETag of an object."""


def split_location(path: str) -> tuple[str, str]:
    """Split `scheme://bucket/key` into bucket and key; the key is empty for a bucket alone."""
    bucket, _, key = path.partition("://")[2].partition("/")
    return bucket, key


def find_start(folder: str) -> str:
    """Return what precedes the keys of the bucket of `folder` in locations, `scheme://bucket/`."""
    scheme, _, _ = folder.partition("://")
    return f"{scheme}://{split_location(folder)[0]}/"


def explain_no_bucket(path: str) -> DataError:
    """Return the error that the bucket of `path` does not exist."""
    return DataError(f"{path}: the bucket does not exist; create it, or name another")


def explain_collisions(path: str) -> ClusterError:
    """Return the error that too many writes to `path` collided."""
    return ClusterError(
        f"{path}: {ATTEMPTS} conditional writes collided with other writers; run the same command "
        "again"
    )


def format_content_key(size: int, etag: str) -> str:
    """Return the content key of an object of `size` bytes with the ETag `etag`."""
    return f"{size}-{etag.strip(chr(34))}"


def retry_action(
    action: Callable[[], Result], broken: tuple[type[Exception], ...], path: str
) -> Result:
    """Repeat `action` while it raises an error of `broken`, ATTEMPTS times at most."""
    for attempt in range(ATTEMPTS):
        try:
            return action()
        except broken as error:
            if attempt == ATTEMPTS - 1:
                raise ClusterError(
                    f"{path}: {ATTEMPTS} attempts failed; the last one with: {error}"
                ) from error
            time.sleep(random.uniform(0, min(20.0, 0.1 * 2**attempt)))  # full jitter
    raise AssertionError("the last attempt returns or raises")


class BucketFiles(Backend):
    """Files in buckets. A store implements the abstract methods, which each send a request."""

    is_remote = True

    @abc.abstractmethod
    def get_object(self, path: str, begin: int = 0, end: int | None = None) -> bytes:
        """Download the object at `path`, or its bytes from `begin` up to, but excluding, `end`.

        Raises FileNotFoundError, or NothingThere for a range that begins beyond the end.
        """

    @abc.abstractmethod
    def head_object(self, path: str) -> tuple[int, str]:
        """Return the size of the object at `path` and its ETag. Raises FileNotFoundError."""

    @abc.abstractmethod
    def write(self, path: str, data: bytes | memoryview) -> None:
        """Write `data` to `path` atomically, replacing an existing object."""

    @abc.abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Write `data` only if no object is there; return whether this call wrote the object."""

    @abc.abstractmethod
    def upload_file(self, local: str, path: str) -> None:
        """Upload the file `local` to `path` atomically."""

    @abc.abstractmethod
    def download_file(self, path: str, local: str) -> None:
        """Download the object at `path` to the file `local`."""

    @abc.abstractmethod
    def list_sizes(self, folder: str) -> dict[str, int]:
        """Return the size in bytes of each object below `folder`, by location."""

    @abc.abstractmethod
    def list_pages(self, folder: str, first: str) -> Iterator[Mapping[str, Described]]:
        """Yield pages that describe the objects directly in `folder`, by location, in order.

        Objects before the location `first` may be left out.
        """

    @abc.abstractmethod
    def iterate_files(self, folder: str) -> Iterator[str]:
        """Yield the locations of all objects below `folder`, in order, by one request a page."""

    @abc.abstractmethod
    def list_folders(self, folder: str) -> list[str]:
        """Return the direct subfolders (common prefixes) of `folder`, unsorted."""

    @abc.abstractmethod
    def delete(self, path: str) -> None:
        """Remove the object at `path` if it exists."""

    @abc.abstractmethod
    def delete_batch(self, paths: Sequence[str]) -> None:
        """Remove the objects at `paths`, which lie in one bucket and are DELETED_AT_ONCE at most.

        Raises ClusterError if one could not be removed, once all others are.
        """

    @abc.abstractmethod
    def copy(self, path: str, target: str) -> None:
        """Copy the object at `path` to `target` on the server. Raises FileNotFoundError."""

    def read(self, path: str) -> bytes:
        """Return all bytes of the object at `path`. Raises FileNotFoundError."""
        return self.get_object(path)

    def read_range(self, path: str, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` up to `end`, of which at least one must exist."""
        return self.get_object(path, begin, end)

    def read_into(self, path: str, begin: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `begin` on, and return the number of bytes read."""
        try:
            data = self.get_object(path, begin, begin + len(buffer))
        except NothingThere:
            return 0
        buffer[: len(data)] = data
        return len(data)

    def open_read(self, path: str) -> BinaryIO:
        """Open the object at `path` as a seekable binary stream of ranged requests."""
        reader = _ObjectReader(self, path, self.measure_size(path))
        return cast(BinaryIO, io.BufferedReader(reader, READ_BLOCK))

    open_for_arrow = open_read

    @contextlib.contextmanager
    def atomic_file(self, path: str) -> Iterator[str]:
        """Yield a local file name, and upload the file to `path` if the block succeeds."""
        with tempfile.TemporaryDirectory(prefix="trainrig-") as folder:
            temporary = str(Path(folder) / "upload")
            yield temporary
            self.upload_file(temporary, path)

    def measure_size(self, path: str) -> int:
        """Return the size of the object at `path`, in bytes. Raises FileNotFoundError."""
        return self.head_object(path)[0]

    def compute_content_key(self, path: str) -> str:
        """Return the size and the ETag of the object at `path`."""
        return format_content_key(*self.head_object(path))

    def measure_sizes(self, paths: Sequence[str]) -> dict[str, int]:
        """Return the size in bytes of each object among `paths`, by location."""
        return {path: size for path, (size, _) in self.describe_objects(paths).items()}

    def compute_content_keys(self, paths: Sequence[str]) -> list[str]:
        """Return the size and the ETag of each object, in order. Raises FileNotFoundError."""
        return list(map_concurrently(self.compute_content_key, paths))

    def describe_objects(self, paths: Sequence[str]) -> dict[str, Described]:
        """Return the size and the ETag of each object among `paths`, by location.

        Folders with more than FEW of them are listed. What a listing does not show is asked for by
        a HEAD request.
        """
        folders: dict[str, list[str]] = {}
        for path in paths:
            folders.setdefault(path.rpartition("/")[0], []).append(path)
        listed = [(folder, own) for folder, own in folders.items() if len(own) > FEW]
        found: dict[str, Described] = {}
        for part in map_concurrently(lambda entry: self._describe_by_list(*entry), listed):
            found |= part
        left = [path for path in paths if path not in found]
        for path, described in zip(left, map_concurrently(self._describe, left), strict=True):
            if described is not None:
                found[path] = described
        return found

    def _describe_by_list(self, folder: str, paths: Sequence[str]) -> dict[str, Described]:
        """Describe the objects among `paths`, all in `folder`, that a few pages of it show."""
        wanted = set(paths)
        found: dict[str, Described] = {}
        pages = self.list_pages(folder, min(paths))
        try:
            for page in itertools.islice(pages, 1 + len(paths) // PAGE_WORTH):
                found |= {path: page[path] for path in wanted & page.keys()}
                if len(found) == len(wanted):
                    break
        except ClusterError as error:  # some accounts may read objects, but not list them
            log.info("%s; asking for %d objects one by one", error, len(paths))
        return found

    def _describe(self, path: str) -> Described | None:
        try:
            return self.head_object(path)
        except FileNotFoundError:
            return None

    def find_first(self, folder: str) -> str | None:
        """Return the first object below `folder` by location, but no hidden one."""
        return next(filter(is_file_name, self.iterate_files(folder)), None)

    def list_files(self, folder: str) -> Iterable[str]:
        """Return the locations of all objects below `folder`."""
        return self.iterate_files(folder)

    def delete_files(self, paths: Iterable[str]) -> None:
        """Remove the objects at `paths` that exist, in batches, up to the first that fails."""
        for batch in _cut_batches(paths):
            self.delete_batch(batch)

    def move(self, path: str, target: str) -> None:
        """Copy the object to `target` on the server, then delete the original."""
        self.copy(path, target)
        self.delete(path)

    def move_files(self, targets: Mapping[str, str]) -> None:
        """Copy all objects to their targets on the server, then delete the originals."""
        for _ in map_concurrently(lambda pair: self.copy(*pair), list(targets.items())):
            pass
        self.delete_files(targets)

    def delete_folder(self, folder: str) -> None:
        """Remove all objects below `folder`, while the folder is being listed."""
        self.delete_files(self.iterate_files(folder))

    def fetch_local_path(self, path: str) -> Path:
        """Download the object at `path`, unless the cache on disk has it under its ETag."""
        name = hashlib.sha256(f"{path}\n{self.compute_content_key(path)}".encode()).hexdigest()
        home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        cached = Path(home) / "trainrig" / name
        if not cached.exists():
            with local_files.LOCAL.atomic_file(str(cached)) as temporary:
                self.download_file(path, temporary)
        return cached


def _cut_batches(paths: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of up to DELETED_AT_ONCE neighbours of `paths` that lie in one bucket."""
    for _, inside in itertools.groupby(paths, key=lambda path: split_location(path)[0]):
        while batch := list(itertools.islice(inside, DELETED_AT_ONCE)):
            yield batch


class _ObjectReader(io.RawIOBase):
    """Seekable raw stream that reads one object by ranged requests."""

    def __init__(self, store: BucketFiles, path: str, length: int) -> None:
        self._store = store
        self._path = path
        self._length = length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._length - self._at)
        if wanted <= 0:
            return 0
        data = self._store.get_object(self._path, self._at, self._at + wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
