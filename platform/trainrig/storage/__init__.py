"""Bytes on a disk or in an S3 bucket, behind one set of functions.

A location is a `str`: a path, or `s3://bucket/key`. A file appears whole or not at all: on disk it
is written under a temporary name, synced and renamed; on S3 an object is put, or its multipart
upload completed, in one go. `create` is exclusive on both, which is what locks and manifests need.
`AWS_ENDPOINT_URL` and the other `AWS_*` variables are honoured by boto3.
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

# Bytes a ranged GET asks for; S3 gives its full rate to a stream from about here.
READ_BLOCK = 8 * 2**20
HASH_BLOCK = 2**20  # bytes


def join(folder: str, *names: str) -> str:
    """`folder/name/…`, whatever kind of location the folder is."""
    return "/".join([folder.rstrip("/"), *names] if folder else names)


def make_absolute(path: str) -> str:
    """`path` as processes elsewhere on this machine, in folders of their own, can use it."""
    return path if path.startswith(S3) else str(Path(path).absolute())


def read(path: str) -> bytes:
    """All bytes at `path`. Raises FileNotFoundError."""
    if path.startswith(S3):
        return s3_objects.get_object(path, None)
    with _name_file_in_errors(path):
        return Path(path).read_bytes()


def read_range(path: str, begin: int, end: int) -> bytes:
    """The bytes `begin` up to `end` at `path`; fewer where the file ends. Raises FileNotFoundError.

    On S3 at least one of them must be there.
    """
    if path.startswith(S3):
        return s3_objects.get_object(path, f"bytes={begin}-{end - 1}")
    # By the system's own calls: a file object takes four times as long, and thousands are read.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = os.pread(descriptor, end - begin, begin)
        while len(found) < end - begin and (
            more := os.pread(descriptor, end - begin - len(found), begin + len(found))
        ):
            found += more  # beyond 2 GiB
        return found
    finally:
        os.close(descriptor)


def read_into(path: str, begin: int, buffer: memoryview) -> int:
    """Fill `buffer` from byte `begin` of `path` on; how much of it was, which is less only at the
    end of the file. Raises FileNotFoundError."""
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
    """Put `data` at `path`, in place of whatever is there, atomically."""
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
    """Put `data` at `path` only if nothing is there; whether this call did so.

    Of several callers at once exactly one gets True, provided that each one's data is its own
    (holds a random number, say): a retry after a lost answer recognises itself by its bytes.
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
    """A local file name to write to; published at `path` when the block ends without an error."""
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
    """A seekable stream of the bytes at `path`. Raises FileNotFoundError."""
    if path.startswith(S3):
        reader = s3_objects.ObjectReader(path, measure_size(path))
        return cast(BinaryIO, io.BufferedReader(reader, READ_BLOCK))
    return Path(path).open("rb")


def open_for_arrow(path: str) -> Any:
    """A stream of the bytes at `path` for the readers of Arrow. Raises FileNotFoundError.

    On disk a file of Arrow's own. Its threads let go of a file a moment after it was read. Of one
    of Python's they cannot once the interpreter ends, and abort the process: `tokens inspect` did
    so in 2 of 60 runs (https://github.com/apache/arrow/issues/34314).
    """
    import pyarrow as pa  # not before: to read a run file takes none

    return open_read(path) if path.startswith(S3) else pa.OSFile(path)


def exists(path: str) -> bool:
    """Whether a file (not a folder) is at `path`."""
    try:
        measure_size(path)
    except FileNotFoundError:
        return False
    return True


def measure_size(path: str) -> int:
    """Bytes of the file at `path`. Raises FileNotFoundError."""
    if path.startswith(S3):
        return int(s3_objects.head_object(path)["ContentLength"])
    if not Path(path).is_file():
        raise FileNotFoundError(path)
    return Path(path).stat().st_size


def list_files(folder: str, suffix: str = "") -> list[str]:
    """All files below `folder` whose names end with `suffix`, sorted; none if there is no folder.

    Names that begin with a dot (files being written) are left out.
    """
    found = list(s3_objects.list_objects(folder)) if folder.startswith(S3) else _walk(folder)
    return sorted(path for path in found if path.endswith(suffix) and _is_file_name(path))


def list_sizes(folder: str) -> dict[str, int]:
    """Size in bytes of each of the files that `list_files` gives."""
    if folder.startswith(S3):
        return {
            path: s for path, s in s3_objects.list_objects(folder).items() if _is_file_name(path)
        }
    return {path: Path(path).stat().st_size for path in list_files(folder)}


def list_folders(folder: str) -> list[str]:
    """The folders that lie in `folder` itself, sorted; also those with hidden files only."""
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
    # An object whose key ends in "/" is what S3's console makes when asked for a folder.
    return path[-1] != "/" and path.rpartition("/")[2][0] != "."


def delete(path: str) -> None:
    """Remove the file at `path`, if there is one."""
    if path.startswith(S3):
        bucket, key = s3_objects.split_location(path)
        with s3_objects.translate_errors(path):
            s3_objects.get_client().delete_object(Bucket=bucket, Key=key)
    else:
        Path(path).unlink(missing_ok=True)


def move(path: str, target: str) -> None:
    """Put the file at `path` in place of what is at `target`, on the same kind of storage.

    On disk at once; on S3 by a copy of the server's own, after which the original goes.
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
    """Remove `folder` and all that lies below it, if it is there."""
    if folder.startswith(S3):
        for path in s3_objects.list_objects(folder):
            delete(path)
    elif Path(folder).is_dir():
        expect_deletion(folder)
        shutil.rmtree(folder)


def compute_sha256(path: str) -> str:
    """SHA-256 of the bytes at `path`, in hexadecimal."""
    digest = hashlib.sha256()
    with _name_file_in_errors(path), open_read(path) as stream:
        while block := stream.read(HASH_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def compute_content_key(path: str) -> str:
    """A string that changes when the bytes at `path` do: SHA-256 on disk, size and ETag on S3.

    Reading terabytes back from S3 only to hash them would cost more than the stage that asks.
    """
    if path.startswith(S3):
        head = s3_objects.head_object(path)
        return f"{head['ContentLength']}-{head['ETag'].strip(chr(34))}"
    return compute_sha256(path)


def fetch_local_path(path: str) -> Path:
    """A local file with the bytes at `path`: itself, or a download that later calls find again.

    Downloads lie in `$XDG_CACHE_HOME/trainrig`, named by location and ETag.
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
    """The system has the file, and cannot give its bytes."""


@contextlib.contextmanager
def _name_file_in_errors(path: str) -> Iterator[None]:
    """Have the system's errors of reading say which file it was, which they leave out.

    EIO becomes UnreadableFile: in writing it is the machine's fault, in reading the file's.
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
    """Make a rename outlast a power cut."""
    descriptor = os.open(Path(path).parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
