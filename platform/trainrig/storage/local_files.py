"""Files on disks that this machine mounts.

A file is written under a temporary name, synced and renamed.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trainrig.storage.backend import Backend, is_file_name
from trainrig.storage.held_folder import expect_deletion, make_parent

HASH_BLOCK = 2**20  # bytes


class UnreadableFile(OSError):
    """A file exists, but the disk fails to read its bytes."""


@contextlib.contextmanager
def name_file_in_errors(path: str) -> Iterator[None]:
    """Add the file name to read errors of the operating system, which leave the name out.

    EIO becomes UnreadableFile: EIO on a write is a fault of the machine, EIO on a read a fault of
    the file.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO:
            raise UnreadableFile(errno.EIO, error.strerror, error.filename or path) from error
        error.filename = error.filename or path
        raise


def compute_sha256(stream: BinaryIO, path: str) -> str:
    """Compute the SHA-256 of all bytes of `stream`, the file at `path`, in hexadecimal."""
    digest = hashlib.sha256()
    with name_file_in_errors(path), stream:
        while block := stream.read(HASH_BLOCK):
            digest.update(block)
    return digest.hexdigest()


class LocalFiles(Backend):
    """Files of this machine's file system."""

    is_remote = False

    def read(self, path: str) -> bytes:
        """Return all bytes of the file at `path`. Raises FileNotFoundError."""
        with name_file_in_errors(path):
            return Path(path).read_bytes()

    def read_range(self, path: str, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` up to, but excluding, `end`. Raises FileNotFoundError."""
        # System calls are used, because a Python file object takes four times as long, and runs
        # read thousands of ranges.
        descriptor = os.open(path, os.O_RDONLY)
        try:
            found = os.pread(descriptor, end - begin, begin)
            while len(found) < end - begin and (
                more := os.pread(descriptor, end - begin - len(found), begin + len(found))
            ):
                found += more  # one `pread` returns 2 GiB at most
            return found
        finally:
            os.close(descriptor)

    def read_into(self, path: str, begin: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `begin` on, and return the number of bytes read."""
        with Path(path).open("rb", buffering=0) as file:
            file.seek(begin)
            count = 0
            while count < len(buffer) and (more := file.readinto(buffer[count:])):
                count += more
            return count

    def open_read(self, path: str) -> BinaryIO:
        """Open the file at `path` as a seekable binary stream. Raises FileNotFoundError."""
        return Path(path).open("rb")

    def open_for_arrow(self, path: str) -> Any:
        """Open the file at `path` as an Arrow file. Raises FileNotFoundError.

        Arrow's threads release a file a moment after it was read. They cannot release a Python file
        once the interpreter shuts down, and abort the process: `tokens inspect` did so in 2 of 60
        runs (https://github.com/apache/arrow/issues/34314).
        """
        import pyarrow as pa  # imported here, because reading a run file needs no Arrow

        return pa.OSFile(path)

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Write `data` to `path` atomically, replacing an existing file."""
        with self.atomic_file(path) as temporary:
            Path(temporary).write_bytes(data)

    def create(self, path: str, data: bytes) -> bool:
        """Write `data` only if no file is there; return whether this call wrote the file."""
        make_parent(path)
        temporary = _make_temporary_name(path)
        try:
            with Path(temporary).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)  # atomic, and never replaces
        except FileExistsError:
            return False
        finally:
            Path(temporary).unlink(missing_ok=True)
        _sync_folder(path)
        return True

    @contextlib.contextmanager
    def atomic_file(self, path: str) -> Iterator[str]:
        """Yield a temporary name, and rename the file to `path` if the block succeeds."""
        make_parent(path)
        temporary = _make_temporary_name(path)
        try:
            yield temporary
            with Path(temporary).open("rb+") as file:
                os.fsync(file.fileno())
            try:
                Path(temporary).replace(path)
            except IsADirectoryError as error:  # names the temporary file
                raise IsADirectoryError(error.errno, error.strerror, path) from None
        finally:
            Path(temporary).unlink(missing_ok=True)
        _sync_folder(path)

    def measure_size(self, path: str) -> int:
        """Return the size of the file at `path`, in bytes. Raises FileNotFoundError."""
        if not Path(path).is_file():
            raise FileNotFoundError(path)
        return Path(path).stat().st_size

    def compute_content_key(self, path: str) -> str:
        """Return the SHA-256 of the file at `path`."""
        with name_file_in_errors(path):
            return compute_sha256(self.open_read(path), path)

    def find_first(self, folder: str) -> str | None:
        """Return the first file below `folder` by path, but no hidden one; None without one."""
        return min(filter(is_file_name, self.list_files(folder)), default=None)

    def list_files(self, folder: str) -> Iterator[str]:
        """Yield the paths of all files below `folder`."""
        for parent, _, names in os.walk(folder):
            for name in names:
                yield os.path.join(parent, name)  # noqa: PTH118 - Path() would rewrite "./a"

    def list_sizes(self, folder: str) -> dict[str, int]:
        """Return the size of each file below `folder` by path, but not of hidden ones.

        Hidden files are left out, because those that are being written may vanish at any moment.
        """
        visible = (path for path in self.list_files(folder) if Path(path).name[0] != ".")
        return self.measure_sizes(list(visible))

    def list_folders(self, folder: str) -> list[str]:
        """Return the direct subfolders of `folder`, unsorted."""
        if not Path(folder).is_dir():
            return []
        names = [entry.name for entry in Path(folder).iterdir() if entry.is_dir()]
        return [f"{folder.rstrip('/')}/{name}" if folder else name for name in names]

    def delete(self, path: str) -> None:
        """Remove the file at `path` if it exists."""
        Path(path).unlink(missing_ok=True)

    def move(self, path: str, target: str) -> None:
        """Move the file at `path` to `target` by one rename, replacing an existing file."""
        make_parent(target)
        Path(path).replace(target)

    def delete_folder(self, folder: str) -> None:
        """Remove `folder` and everything below it, if the folder exists."""
        if Path(folder).is_dir():
            expect_deletion(folder)
            shutil.rmtree(folder)

    def fetch_local_path(self, path: str) -> Path:
        """Return the path itself."""
        return Path(path)


LOCAL = LocalFiles()


def _make_temporary_name(path: str) -> str:
    target = Path(path)
    return str(target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}"))


def _sync_folder(path: str) -> None:
    """Sync the folder of `path` to disk, so that a rename in the folder survives a power cut."""
    descriptor = os.open(Path(path).parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
