"""Functions that read and write files on a disk or in an S3 bucket alike.

A location is a `str`: a path, or `s3://bucket/key`. Writes are atomic, so a reader never finds half
a file. On disk a file is written under a temporary name, synced and renamed. On S3 an object is put
by one request, or by one multipart upload. `create` is exclusive on both, which locks and manifests
need. boto3 honours `AWS_ENDPOINT_URL` and the other `AWS_*` variables.

Text files are decoded from UTF-8, with or without a byte order mark.
"""

import contextlib
import errno
import hashlib
import io
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from trainrig.storage import s3_objects
from trainrig.storage.held_folder import check_held as check_held
from trainrig.storage.held_folder import expect_deletion
from trainrig.storage.held_folder import hold_folder as hold_folder
from trainrig.storage.held_folder import make_parent as make_parent
from trainrig.storage.s3_objects import S3 as S3

# Bytes of a ranged GET. S3 serves a stream at its full rate from about this size on.
READ_BLOCK = 8 * 2**20
HASH_BLOCK = 2**20  # bytes


def join(folder: str, *names: str) -> str:
    """Join `folder` and `names` with slashes, for a path or an `s3://` location."""
    return "/".join([folder.rstrip("/"), *names] if folder else names)


def make_absolute(path: str) -> str:
    """Return `path` as an absolute path; an `s3://` location is returned unchanged."""
    return path if path.startswith(S3) else str(Path(path).absolute())


def read(path: str) -> bytes:
    """Return all bytes of the file at `path`. Raises FileNotFoundError."""
    if path.startswith(S3):
        return s3_objects.get_object(path, None)
    with _name_file_in_errors(path):
        return Path(path).read_bytes()


def read_range(path: str, begin: int, end: int) -> bytes:
    """Read the bytes from `begin` up to, but excluding, `end` of the file at `path`.

    Fewer bytes are returned where the file ends earlier. On S3 the range must hold at least one
    byte of the object. Raises FileNotFoundError.
    """
    if path.startswith(S3):
        return s3_objects.get_object(path, f"bytes={begin}-{end - 1}")
    # System calls are used, because a Python file object takes four times as long, and runs read
    # thousands of ranges.
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


def read_into(path: str, begin: int, buffer: memoryview) -> int:
    """Fill `buffer` with the bytes of `path` from `begin` on, and return the number of bytes read.

    The number is smaller than the buffer only at the end of the file. Raises FileNotFoundError.
    """
    if path.startswith(S3):
        try:
            data = s3_objects.get_object(path, f"bytes={begin}-{begin + len(buffer) - 1}")
        except s3_objects.NothingThere:
            return 0
        buffer[: len(data)] = data
        return len(data)
    with Path(path).open("rb", buffering=0) as file:
        file.seek(begin)
        count = 0
        while count < len(buffer) and (more := file.readinto(buffer[count:])):
            count += more
        return count


def write(path: str, data: bytes | memoryview) -> None:
    """Write `data` to `path` atomically, replacing an existing file."""
    if path.startswith(S3):
        if len(data) > s3_objects.PART:
            return s3_objects.upload_parts(path, memoryview(data))
        bucket, key = s3_objects.split_location(path)
        with s3_objects.translate_errors(path):
            s3_objects.get_client().put_object(Bucket=bucket, Key=key, Body=bytes(data))
        return None
    with atomic_file(path) as temporary:
        Path(temporary).write_bytes(data)
    return None


def create(path: str, data: bytes) -> bool:
    """Write `data` to `path` only if no file is there; return whether this call wrote the file.

    Of several concurrent callers exactly one gets True, provided that their data differ (by a
    random number, for instance): a retry after a lost response recognises its own earlier write by
    the bytes.
    """
    if path.startswith(S3):
        return s3_objects.create_object(path, data)
    make_parent(path)
    temporary = _make_temporary_name(path)
    try:
        _write_synced(temporary, data)
        os.link(temporary, path)  # atomic, and never replaces
    except FileExistsError:
        return False
    finally:
        Path(temporary).unlink(missing_ok=True)
    _sync_folder(path)
    return True


@contextlib.contextmanager
def atomic_file(path: str) -> Iterator[str]:
    """Yield a local file name to write to, and publish the file at `path` if the block succeeds."""
    if path.startswith(S3):
        with tempfile.TemporaryDirectory(prefix="trainrig-") as folder:
            temporary = str(Path(folder) / "upload")
            yield temporary
            bucket, key = s3_objects.split_location(path)
            with s3_objects.translate_errors(path):
                s3_objects.get_client().upload_file(temporary, bucket, key)
        return
    make_parent(path)
    temporary = _make_temporary_name(path)
    try:
        yield temporary
        with Path(temporary).open("rb+") as file:
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    _sync_folder(path)


def open_read(path: str) -> BinaryIO:
    """Open the file at `path` as a seekable binary stream. Raises FileNotFoundError."""
    if path.startswith(S3):
        reader = s3_objects.ObjectReader(path, measure_size(path))
        return cast(BinaryIO, io.BufferedReader(reader, READ_BLOCK))
    return Path(path).open("rb")


def open_for_arrow(path: str) -> Any:
    """Open the file at `path` for Arrow's readers. Raises FileNotFoundError.

    On disk the stream is an Arrow file. Arrow's threads release a file a moment after it was read.
    They cannot release a Python file once the interpreter shuts down, and abort the process:
    `tokens inspect` did so in 2 of 60 runs (https://github.com/apache/arrow/issues/34314).
    """
    import pyarrow as pa  # imported here, because reading a run file needs no Arrow

    return open_read(path) if path.startswith(S3) else pa.OSFile(path)


def exists(path: str) -> bool:
    """Return whether a file exists at `path`; a folder does not count."""
    try:
        measure_size(path)
    except FileNotFoundError:
        return False
    return True


def measure_size(path: str) -> int:
    """Return the size of the file at `path`, in bytes. Raises FileNotFoundError."""
    if path.startswith(S3):
        return int(s3_objects.head_object(path)["ContentLength"])
    if not Path(path).is_file():
        raise FileNotFoundError(path)
    return Path(path).stat().st_size


def list_files(folder: str, suffix: str = "") -> list[str]:
    """List all files below `folder` whose names end with `suffix`, sorted by location.

    The list is empty if the folder does not exist. Names that begin with a dot, such as those of
    files that are still being written, are left out.
    """
    found = list(s3_objects.list_objects(folder)) if folder.startswith(S3) else _walk(folder)
    return sorted(path for path in found if path.endswith(suffix) and _is_file_name(path))


def list_sizes(folder: str) -> dict[str, int]:
    """Return the size in bytes of each file that `list_files` finds, by location."""
    if folder.startswith(S3):
        return {
            path: s for path, s in s3_objects.list_objects(folder).items() if _is_file_name(path)
        }
    return {path: Path(path).stat().st_size for path in list_files(folder)}


def list_folders(folder: str) -> list[str]:
    """List the direct subfolders of `folder`, sorted, including those with only hidden files."""
    if folder.startswith(S3):
        return s3_objects.list_prefixes(folder)
    if not Path(folder).is_dir():
        return []
    return sorted(join(folder, entry.name) for entry in Path(folder).iterdir() if entry.is_dir())


def _walk(folder: str) -> list[str]:
    return [
        os.path.join(parent, name)  # noqa: PTH118 - Path() would rewrite "./a"
        for parent, folders, names in os.walk(folder)
        for name in names
    ]


def _is_file_name(path: str) -> bool:
    # S3's console represents an empty folder by an object whose key ends in "/".
    return path[-1] != "/" and path.rpartition("/")[2][0] != "."


def delete(path: str) -> None:
    """Remove the file at `path` if it exists."""
    if path.startswith(S3):
        bucket, key = s3_objects.split_location(path)
        with s3_objects.translate_errors(path):
            s3_objects.get_client().delete_object(Bucket=bucket, Key=key)
    else:
        Path(path).unlink(missing_ok=True)


def move(path: str, target: str) -> None:
    """Move the file at `path` to `target`, on the same kind of storage, replacing an existing file.

    On disk the move is one rename. S3 copies the object on the server, then deletes the original.
    """
    if path.startswith(S3):
        bucket, key = s3_objects.split_location(path)
        to_bucket, to_key = s3_objects.split_location(target)
        with s3_objects.translate_errors(path):
            s3_objects.get_client().copy({"Bucket": bucket, "Key": key}, to_bucket, to_key)
        delete(path)
    else:
        make_parent(target)
        Path(path).replace(target)


def delete_folder(folder: str) -> None:
    """Remove `folder` and everything below it, if the folder exists."""
    if folder.startswith(S3):
        for path in s3_objects.list_objects(folder):
            delete(path)
    elif Path(folder).is_dir():
        expect_deletion(folder)
        shutil.rmtree(folder)


def compute_sha256(path: str) -> str:
    """Compute the SHA-256 of the file at `path`, in hexadecimal."""
    digest = hashlib.sha256()
    with _name_file_in_errors(path), open_read(path) as stream:
        while block := stream.read(HASH_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def compute_content_key(path: str) -> str:
    """Return a string that changes when the content of `path` changes.

    On disk the string is the SHA-256, on S3 the size and the ETag: reading terabytes back from S3
    only to hash them would cost more than the stage that needs the string.
    """
    if path.startswith(S3):
        head = s3_objects.head_object(path)
        return f"{head['ContentLength']}-{head['ETag'].strip(chr(34))}"
    return compute_sha256(path)


def fetch_local_path(path: str) -> Path:
    """Return the path of a local file with the content of `path`, downloading the file from S3.

    Downloads are cached in `$XDG_CACHE_HOME/trainrig`, named by location and ETag.
    """
    if not path.startswith(S3):
        return Path(path)
    name = hashlib.sha256(f"{path}\n{compute_content_key(path)}".encode()).hexdigest()
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    cached = Path(home) / "trainrig" / name
    if not cached.exists():
        bucket, key = s3_objects.split_location(path)
        with atomic_file(str(cached)) as temporary, s3_objects.translate_errors(path):
            s3_objects.get_client().download_file(bucket, key, temporary)
    return cached


class UnreadableFile(OSError):
    """A file exists, but the disk fails to read its bytes."""


@contextlib.contextmanager
def _name_file_in_errors(path: str) -> Iterator[None]:
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


def _make_temporary_name(path: str) -> str:
    target = Path(path)
    return str(target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}"))


def _write_synced(path: str, data: bytes) -> None:
    with Path(path).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: str) -> None:
    """Sync the folder of `path` to disk, so that a rename in the folder survives a power cut."""
    descriptor = os.open(Path(path).parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
