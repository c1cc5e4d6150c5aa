"""What all stores of objects in buckets have in common: files made of a few kinds of requests."""

import abc
import contextlib
import hashlib
import io
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from trainrig.errors import ClusterError
from trainrig.storage import local_files
from trainrig.storage.backend import READ_BLOCK, NothingThere

# Number of attempts to read a body that is cut off, or to create an object that another writer is
# creating.
ATTEMPTS = 10
PART = 16 * 2**20  # bytes of one part of an upload; S3 takes 10,000 parts, which makes 160 GiB
UPLOADS = 4  # parts of one file that are uploaded concurrently

Result = TypeVar("Result")


def split_location(path: str) -> tuple[str, str]:
    """Split `scheme://bucket/key` into bucket and key; the key is empty for a bucket alone."""
    bucket, _, key = path.partition("://")[2].partition("/")
    return bucket, key


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


class BucketFiles(abc.ABC):
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
    def list_folders(self, folder: str) -> list[str]:
        """Return the direct subfolders (common prefixes) of `folder`, unsorted."""

    @abc.abstractmethod
    def delete(self, path: str) -> None:
        """Remove the object at `path` if it exists."""

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
        size, etag = self.head_object(path)
        return f"{size}-{etag.strip(chr(34))}"

    def list_files(self, folder: str) -> Iterable[str]:
        """Return the locations of all objects below `folder`."""
        return self.list_sizes(folder)

    def move(self, path: str, target: str) -> None:
        """Copy the object to `target` on the server, then delete the original."""
        self.copy(path, target)
        self.delete(path)

    def delete_folder(self, folder: str) -> None:
        """Remove all objects below `folder`."""
        for path in self.list_sizes(folder):
            self.delete(path)

    def fetch_local_path(self, path: str) -> Path:
        """Download the object at `path`, unless the cache on disk has it under its ETag."""
        name = hashlib.sha256(f"{path}\n{self.compute_content_key(path)}".encode()).hexdigest()
        home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        cached = Path(home) / "trainrig" / name
        if not cached.exists():
            with local_files.LOCAL.atomic_file(str(cached)) as temporary:
                self.download_file(path, temporary)
        return cached


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
