"""Objects in S3 buckets: what `storage` asks for where a location is `s3://bucket/key`."""

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
ATTEMPTS = 10  # of reading a body that is cut off, and of creating what another writer is at
PART = 16 * 2**20  # bytes of one part of an upload; S3 takes 10,000 of them: 160 GiB
UPLOADS = 4  # parts of one file on their way at a time

Result = TypeVar("Result")


def split_location(path: str) -> tuple[str, str]:
    """The bucket and the key of `path`; of a bucket alone the key is ''."""
    bucket, _, key = path.removeprefix(S3).partition("/")
    return bucket, key


@functools.cache
def get_client() -> Any:
    """This process's client, made at the first call."""
    from boto3.session import Session
    from botocore.config import Config

    from trainrig.storage.s3_credentials import make_session

    retries: Any = {"mode": "standard", "max_attempts": 1}  # we send again ourselves
    config = Config(retries=retries, connect_timeout=10, read_timeout=60)
    # A session of its own: threads may not share boto3's default session.
    session = make_session()
    client = Session(botocore_session=session).client("s3", config=config)
    s3_retries.register(client, session.get_credentials())
    return client


@contextlib.contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """What S3 refuses, and what still fails when boto3 has retried, in our own terms."""
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
            raise DataError(f"{path}: no such bucket; create it, or name another") from None
        if (code := _get_code(error)) in s3_retries.EXPIRED_CODES:
            raise ClusterError(
                f"{path}: the AWS credentials of this machine have expired ({code}) and no newer "
                "ones are there; renew them, and the same command goes on"
            ) from error
        raise ClusterError(f"{path}: S3 answers {error}") from error
    except NoCredentialsError:
        raise ClusterError(
            f"{path}: no AWS credentials on this machine; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY there, or give it a role"
        ) from None
    except (BotoCoreError, Boto3Error) as error:
        raise ClusterError(f"{path}: {error}") from error


def list_objects(folder: str) -> dict[str, int]:
    """Path → size of each object below `folder`."""
    bucket, prefix = split_location(folder.rstrip("/") + "/")
    with translate_errors(folder):
        pages = get_client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return {
            f"{S3}{bucket}/{item['Key']}": int(item["Size"])
            for page in pages
            for item in page.get("Contents", [])
        }


def list_prefixes(folder: str) -> list[str]:
    """What stands for folders in `folder` itself, unsorted."""
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
    """Put `data`, more than one PART of it, at `path`: whole, or not at all."""
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
            with contextlib.suppress(Exception):  # its parts would be stored, and billed, unseen
                get_client().abort_multipart_upload(**place)
            raise


def complete_upload(
    path: str, place: dict[str, str], parts: list[dict[str, Any]], length: int
) -> None:
    """End the upload `place`, of `length` bytes in `parts`."""
    from botocore.exceptions import ClientError

    try:
        get_client().complete_multipart_upload(**place, MultipartUpload={"Parts": parts})
    except ClientError as error:
        # What a retry is told whose first try was done, but not answered.
        if _get_code(error) != "NoSuchUpload" or int(head_object(path)["ContentLength"]) != length:
            raise


def head_object(path: str) -> dict[str, Any]:
    """What S3 says of the object at `path`. Raises FileNotFoundError."""
    bucket, key = split_location(path)
    if not key:
        raise FileNotFoundError(path)
    with translate_errors(path):
        return cast(dict[str, Any], get_client().head_object(Bucket=bucket, Key=key))


def get_object(path: str, byte_range: str | None) -> bytes:
    """The bytes at `path`, or a range of them, written as HTTP does. Raises FileNotFoundError, or
    NothingThere for a range that begins beyond the end."""
    from botocore.exceptions import IncompleteReadError, ReadTimeoutError, ResponseStreamingError

    bucket, key = split_location(path)
    wanted = {"Range": byte_range} if byte_range else {}

    def fetch() -> bytes:
        return cast(bytes, get_client().get_object(Bucket=bucket, Key=key, **wanted)["Body"].read())

    # boto3 retries the request, but not a body that is cut off on the way.
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
                raise ClusterError(f"{path}: {ATTEMPTS} attempts failed: {error}") from error
            time.sleep(random.uniform(0, min(20.0, 0.1 * 2**attempt)))  # full jitter
    raise AssertionError("the last attempt returns or raises")


def create_object(path: str, data: bytes) -> bool:
    """See storage.create."""
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
            time.sleep(random.uniform(0, 0.5))  # another writer is at it: its outcome is near
    raise ClusterError(f"{path}: {ATTEMPTS} conditional writes met another writer each time")


def _get_code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


class NothingThere(ClusterError):
    """A range was asked for that begins at the end of its object, or beyond."""


class ObjectReader(io.RawIOBase):
    """Seekable reads of one S3 object by ranged GETs."""

    def __init__(self, path: str, length: int) -> None:
        self._path, self._length, self._at = path, length, 0

    def readable(self) -> bool:
        """See io.RawIOBase."""
        return True

    def seekable(self) -> bool:
        """See io.RawIOBase."""
        return True

    def tell(self) -> int:
        """See io.RawIOBase."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See io.RawIOBase."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase."""
        wanted = min(len(buffer), self._length - self._at)
        if wanted <= 0:
            return 0
        data = get_object(self._path, f"bytes={self._at}-{self._at + wanted - 1}")
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
