"""Reads and writes of S3 objects, for locations `s3://bucket/key` of the `storage` functions."""

import contextlib
import functools
import io
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

from trainrig.errors import ClusterError, DataError
from trainrig.storage import s3_retries

S3 = "s3://"
# Number of attempts to read a body that is cut off, or to create an object that another writer is
# creating.
ATTEMPTS = 10
PART = 16 * 2**20  # bytes of one part of an upload; S3 takes 10,000 parts, which makes 160 GiB
UPLOADS = 4  # parts of one file that are uploaded concurrently

Result = TypeVar("Result")


def split_location(path: str) -> tuple[str, str]:
    """Split an `s3://` location into bucket and key; the key is empty for a bucket alone."""
    bucket, _, key = path.removeprefix(S3).partition("/")
    return bucket, key


@functools.cache
def get_client() -> Any:
    """Return the S3 client of this process, creating the client at the first call."""
    from boto3.session import Session
    from botocore.config import Config

    from trainrig.storage.s3_credentials import make_session

    retries: Any = {"mode": "standard", "max_attempts": 1}  # `s3_retries` retries instead
    config = Config(retries=retries, connect_timeout=10, read_timeout=60)
    # Threads may not share boto3's default session, so the client gets a separate one.
    session = make_session()
    client = Session(botocore_session=session).client("s3", config=config)
    s3_retries.register(client, session.get_credentials())
    return client


@contextlib.contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Convert boto3's errors to FileNotFoundError, NothingThere, DataError or ClusterError."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except ClientError as error:
        if _get_code(error) in {"404", "NoSuchKey"}:
            raise FileNotFoundError(path) from None
        if _get_code(error) == "InvalidRange":
            raise NothingThere(path) from None
        if _get_code(error) == "NoSuchBucket":
            raise DataError(
                f"{path}: the bucket does not exist; create it, or name another"
            ) from None
        if (code := _get_code(error)) in s3_retries.EXPIRED_CODES:
            raise ClusterError(
                f"{path}: the AWS credentials of this machine have expired ({code}), and "
                "there are no newer ones; renew them and run the same command, which continues"
            ) from error
        raise ClusterError(f"{path}: S3 answers {error}") from error
    except NoCredentialsError:
        raise ClusterError(
            f"{path}: this machine has no AWS credentials; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY on it, or give it a role"
        ) from None
    except (BotoCoreError, Boto3Error) as error:
        raise ClusterError(f"{path}: {error}") from error


def list_objects(folder: str) -> dict[str, int]:
    """Return the size in bytes of each object below `folder`, by location."""
    bucket, prefix = split_location(folder.rstrip("/") + "/")
    with translate_errors(folder):
        pages = get_client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return {
            f"{S3}{bucket}/{item['Key']}": int(item["Size"])
            for page in pages
            for item in page.get("Contents", [])
        }


def list_prefixes(folder: str) -> list[str]:
    """List the direct subfolders (common prefixes) of `folder`, unsorted."""
    bucket, prefix = split_location(folder.rstrip("/") + "/")
    with translate_errors(folder):
        pages = get_client().get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=bucket, Prefix=prefix, Delimiter="/")
        return [
            f"{S3}{bucket}/{item['Prefix'].rstrip('/')}"
            for page in found
            for item in page.get("CommonPrefixes", [])
        ]


def upload_parts(path: str, data: memoryview) -> None:
    """Upload `data`, which is longer than PART, to `path` atomically by a multipart upload."""
    bucket, key = split_location(path)
    place = {"Bucket": bucket, "Key": key}
    with translate_errors(path):
        place["UploadId"] = get_client().create_multipart_upload(**place)["UploadId"]

        def put(number: int) -> dict[str, Any]:
            body = bytes(data[(number - 1) * PART : number * PART])
            answer = get_client().upload_part(**place, PartNumber=number, Body=body)
            return {"PartNumber": number, "ETag": answer["ETag"]}

        try:
            with ThreadPoolExecutor(UPLOADS) as threads:
                parts = list(threads.map(put, range(1, -(-len(data) // PART) + 1)))
            complete_upload(path, place, parts, len(data))
        except BaseException:
            # Parts of an upload that is not aborted stay stored and billed, but are not listed.
            with contextlib.suppress(Exception):
                get_client().abort_multipart_upload(**place)
            raise


def complete_upload(
    path: str, place: dict[str, str], parts: list[dict[str, Any]], length: int
) -> None:
    """Complete the multipart upload `place`, which has `length` bytes in `parts`."""
    from botocore.exceptions import ClientError

    try:
        get_client().complete_multipart_upload(**place, MultipartUpload={"Parts": parts})
    except ClientError as error:
        # A retry gets NoSuchUpload if the first attempt succeeded but its response was lost.
        if _get_code(error) != "NoSuchUpload" or int(head_object(path)["ContentLength"]) != length:
            raise


def head_object(path: str) -> dict[str, Any]:
    """Return S3's metadata of the object at `path`. Raises FileNotFoundError."""
    bucket, key = split_location(path)
    if not key:
        raise FileNotFoundError(path)
    with translate_errors(path):
        return cast(dict[str, Any], get_client().head_object(Bucket=bucket, Key=key))


def get_object(path: str, byte_range: str | None) -> bytes:
    """Download the object at `path`, or the range `byte_range` in HTTP's notation (`bytes=0-9`).

    Raises FileNotFoundError, or NothingThere for a range that begins beyond the end.
    """
    from botocore.exceptions import IncompleteReadError, ReadTimeoutError, ResponseStreamingError

    bucket, key = split_location(path)
    wanted = {"Range": byte_range} if byte_range else {}

    def fetch() -> bytes:
        return cast(bytes, get_client().get_object(Bucket=bucket, Key=key, **wanted)["Body"].read())

    # boto3 retries the request, but not a response body that is cut off.
    with translate_errors(path):
        return _retry_action(
            fetch, (IncompleteReadError, ReadTimeoutError, ResponseStreamingError), path
        )


def _retry_action(
    action: Callable[[], Result], broken: tuple[type[Exception], ...], path: str
) -> Result:
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


def create_object(path: str, data: bytes) -> bool:
    """Create the object at `path` only if it does not exist, as `storage.create` describes."""
    from botocore.exceptions import ClientError

    bucket, key = split_location(path)
    for _ in range(ATTEMPTS):
        try:
            with translate_errors(path):
                get_client().put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
            return True
        except ClusterError as error:
            answer = error.__cause__
            code = _get_code(answer) if isinstance(answer, ClientError) else ""
            if code == "PreconditionFailed":
                return get_object(path, None) == data
            if code != "ConditionalRequestConflict":
                raise
            time.sleep(random.uniform(0, 0.5))  # a concurrent write is about to finish
    raise ClusterError(
        f"{path}: {ATTEMPTS} conditional writes collided with other writers; run the same "
        "command again"
    )


def _get_code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


class NothingThere(ClusterError):
    """A requested byte range begins at the end of its object, or beyond."""


class ObjectReader(io.RawIOBase):
    """Seekable raw stream that reads one S3 object by ranged GETs."""

    def __init__(self, path: str, length: int) -> None:
        self._path = path
        self._length = length
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the current position, in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the current position and return the new one, as io.RawIOBase does."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer` and return the number of bytes, which is 0 at the end."""
        wanted = min(len(buffer), self._length - self._at)
        if wanted <= 0:
            return 0
        data = get_object(self._path, f"bytes={self._at}-{self._at + wanted - 1}")
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
