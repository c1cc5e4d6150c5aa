"""Functions that read and write files on a disk or in a bucket alike.

A location is a `str`: a path, or a URL such as `s3://bucket/key` whose scheme is in
`schemes.SCHEMES`. Only this package knows schemes: callers ask `is_remote`. Writes are atomic, so a
reader never finds half a file. `create` is exclusive everywhere, which locks and manifests need.

Text files are decoded from UTF-8, with or without a byte order mark.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

from trainrig.storage.backend import READ_BLOCK as READ_BLOCK
from trainrig.storage.backend import is_file_name
from trainrig.storage.held_folder import check_held as check_held
from trainrig.storage.held_folder import hold_folder as hold_folder
from trainrig.storage.held_folder import make_parent as make_parent
from trainrig.storage.local_files import UnreadableFile as UnreadableFile
from trainrig.storage.local_files import compute_sha256 as _compute_sha256
from trainrig.storage.many_files import compute_content_keys as compute_content_keys
from trainrig.storage.many_files import delete_files as delete_files
from trainrig.storage.many_files import map_files as map_files
from trainrig.storage.many_files import measure_sizes as measure_sizes
from trainrig.storage.many_files import move_files as move_files
from trainrig.storage.many_files import read_files as read_files
from trainrig.storage.retries import briefly as briefly
from trainrig.storage.schemes import find_backend
from trainrig.storage.schemes import is_remote as is_remote
from trainrig.storage.schemes import resolve as resolve
from trainrig.storage.schemes import split_scheme as split_scheme


def join(folder: str, *names: str) -> str:
    """Join `folder` and `names` with slashes, for a path or a location in a bucket."""
    return "/".join([folder.rstrip("/"), *names] if folder else names)


def make_absolute(path: str) -> str:
    """Return `path` as an absolute path; a location in a bucket is returned unchanged."""
    return path if is_remote(path) else str(Path(resolve(path)).absolute())


def is_absolute(path: str) -> bool:
    """Return whether `path` names the same place whatever the working directory is."""
    return resolve(path).startswith("/") or is_remote(path)


def read(path: str) -> bytes:
    """Return all bytes of the file at `path`. Raises FileNotFoundError."""
    return find_backend(path).read(resolve(path))


def read_range(path: str, begin: int, end: int) -> bytes:
    """Read the bytes from `begin` up to, but excluding, `end` of the file at `path`.

    Fewer bytes are returned where the file ends earlier. In a bucket the range must hold at least
    one byte of the object. Raises FileNotFoundError.
    """
    return find_backend(path).read_range(resolve(path), begin, end)


def read_into(path: str, begin: int, buffer: memoryview) -> int:
    """Fill `buffer` with the bytes of `path` from `begin` on, and return the number of bytes read.

    The number is smaller than the buffer only at the end of the file. Raises FileNotFoundError.
    """
    return find_backend(path).read_into(resolve(path), begin, buffer)


def write(path: str, data: bytes | memoryview) -> None:
    """Write `data` to `path` atomically, replacing an existing file."""
    find_backend(path).write(resolve(path), data)


def create(path: str, data: bytes) -> bool:
    """Write `data` to `path` only if no file is there; return whether this call wrote the file.

    Of several concurrent callers exactly one gets True, provided that their data differ (by a
    random number, for instance): a retry after a lost response recognises its own earlier write by
    the bytes.
    """
    return find_backend(path).create(resolve(path), data)


def atomic_file(path: str) -> AbstractContextManager[str]:
    """Yield a local file name to write to, and publish the file at `path` if the block succeeds."""
    return find_backend(path).atomic_file(resolve(path))


def open_read(path: str) -> BinaryIO:
    """Open the file at `path` as a seekable binary stream. Raises FileNotFoundError."""
    return find_backend(path).open_read(resolve(path))


def open_for_arrow(path: str) -> Any:
    """Open the file at `path` for Arrow's readers. Raises FileNotFoundError."""
    return find_backend(path).open_for_arrow(resolve(path))


def exists(path: str) -> bool:
    """Return whether a file exists at `path`; a folder does not count."""
    try:
        measure_size(path)
    except FileNotFoundError:
        return False
    return True


def measure_size(path: str) -> int:
    """Return the size of the file at `path`, in bytes. Raises FileNotFoundError."""
    return find_backend(path).measure_size(resolve(path))


def list_files(folder: str, suffix: str = "") -> list[str]:
    """List all files below `folder` whose names end with `suffix`, sorted by location.

    The list is empty if the folder does not exist. Names that begin with a dot, such as those of
    files that are still being written, are left out.
    """
    found = find_backend(folder).list_files(resolve(folder))
    return sorted(path for path in found if path.endswith(suffix) and is_file_name(path))


def find_first(folder: str) -> str | None:
    """Return the first location that `list_files` would list, or None if it would list none.

    In a bucket this takes one request, however many files the folder holds.
    """
    return find_backend(folder).find_first(resolve(folder))


def list_sizes(folder: str) -> dict[str, int]:
    """Return the size in bytes of each file that `list_files` finds, by location."""
    found = find_backend(folder).list_sizes(resolve(folder))
    return {path: found[path] for path in sorted(found) if is_file_name(path)}


def list_folders(folder: str) -> list[str]:
    """List the direct subfolders of `folder`, sorted, including those with only hidden files."""
    return sorted(find_backend(folder).list_folders(resolve(folder)))


def delete(path: str) -> None:
    """Remove the file at `path` if it exists."""
    find_backend(path).delete(resolve(path))


def move(path: str, target: str) -> None:
    """Move the file at `path` to `target`, on the same kind of storage, replacing an existing file.

    On disk the move is one rename. A bucket copies the object on the server, then deletes the
    original.
    """
    find_backend(path).move(resolve(path), resolve(target))


def delete_folder(folder: str) -> None:
    """Remove `folder` and everything below it, if the folder exists."""
    find_backend(folder).delete_folder(resolve(folder))


def compute_sha256(path: str) -> str:
    """Compute the SHA-256 of the file at `path`, in hexadecimal."""
    return _compute_sha256(open_read(path), path)


def compute_content_key(path: str) -> str:
    """Return a string that changes when the content of `path` changes.

    On disk the string is the SHA-256, in a bucket the size and the ETag: reading terabytes back
    from a bucket only to hash them would cost more than the stage that needs the string. On Azure
    the string changes with every write.
    """
    return find_backend(path).compute_content_key(resolve(path))


def fetch_local_path(path: str) -> Path:
    """Return the path of a local file with the content of `path`, downloading it from a bucket.

    Downloads are cached in `$XDG_CACHE_HOME/trainrig`, named by location and ETag.
    """
    return find_backend(path).fetch_local_path(resolve(path))


MARK = b"\xef\xbb\xbf"
OTHERS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


class NotUtf8(ValueError):
    """Some bytes are not UTF-8; the message names their encoding or the first invalid byte."""


def decode_utf8(data: bytes) -> str:
    """Decode `data` from UTF-8, dropping a byte order mark. Raises NotUtf8."""
    if other := OTHERS.get(data[:2]):
        raise NotUtf8(f"{other} by its first two bytes; save it as UTF-8")
    try:
        return data.removeprefix(MARK).decode("utf-8")
    except UnicodeDecodeError as error:
        marked = len(MARK) if data.startswith(MARK) else 0
        raise NotUtf8(f"not UTF-8 at byte {error.start + marked}") from None
