"""S3 buckets and compatible servers, by boto3: the locations `s3://bucket/key`.

boto3 honours `AWS_ENDPOINT_URL` and the other `AWS_*` variables. An object is put by one request,
or by one multipart upload.
"""

import base64
import contextlib
import functools
import hashlib
import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from trainrig.errors import ClusterError
from trainrig.storage import bucket_files, retries
from trainrig.storage.backend import NothingThere, is_file_name
from trainrig.storage.bucket_files import Described, find_start, split_location
from trainrig.storage.concurrent_requests import THREADS, map_concurrently

# Codes by which a server refuses the request to delete several keys that S3 itself takes: it has no
# such request, wants another checksum, or finds a character in a key that XML cannot hold.
NO_BATCHES = {
    "InvalidArgument",
    "InvalidRequest",
    "MalformedXML",
    "MethodNotAllowed",
    "MissingContentMD5",
    "NotImplemented",
}


PAGE = 1_000  # keys in an answer to a listing, the most that S3 gives
SHORT_PAGE = 16  # keys in an answer where one key is looked for


@functools.cache
def get_client() -> Any:
    """Return the S3 client of this process, creating the client at the first call."""
    from boto3.session import Session
    from botocore.config import Config

    from trainrig.storage.s3_credentials import make_session

    options: Any = {"mode": "standard", "max_attempts": 1}  # `retries` retries instead
    config = Config(
        retries=options,
        connect_timeout=10,
        read_timeout=60,
        max_pool_connections=2 * THREADS,  # a connection beyond them is closed after its request
    )
    # Threads may not share boto3's default session, so the client gets a separate one.
    session = make_session()
    client = Session(botocore_session=session).client("s3", config=config)
    retries.register(client, session.get_credentials())
    client.meta.events.register("before-call.s3.DeleteObjects", _add_md5)
    return client


def _add_md5(params: dict[str, Any], **_: object) -> None:
    """Add the MD5 of its body to a request, which boto3 sends with a newer checksum alone.

    Servers with S3's interface, such as older releases of MinIO, refuse to delete several keys
    without it (https://github.com/aws/aws-sdk-js-v3/issues/6920).
    """
    body = params["body"]
    data = body if isinstance(body, bytes) else str(body).encode()
    digest = hashlib.md5(data, usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


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
            raise bucket_files.explain_no_bucket(path) from None
        if (code := _get_code(error)) in retries.EXPIRED_CODES:
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


class S3Objects(bucket_files.BucketFiles):
    """Buckets of S3 or of a server with S3's interface."""

    def get_object(self, path: str, begin: int = 0, end: int | None = None) -> bytes:
        """Download the object at `path` or a range of its bytes."""
        from botocore.exceptions import (
            IncompleteReadError,
            ReadTimeoutError,
            ResponseStreamingError,
        )

        bucket, key = split_location(path)
        wanted = {"Bucket": bucket, "Key": key}
        if end is not None:
            wanted["Range"] = f"bytes={begin}-{end - 1}"

        def fetch() -> bytes:
            return cast(bytes, get_client().get_object(**wanted)["Body"].read())

        # boto3 retries the request, but not a response body that is cut off.
        with translate_errors(path):
            return bucket_files.retry_action(
                fetch, (IncompleteReadError, ReadTimeoutError, ResponseStreamingError), path
            )

    def head_object(self, path: str) -> tuple[int, str]:
        """Return the size of the object at `path` and its ETag. Raises FileNotFoundError."""
        bucket, key = split_location(path)
        if not key:
            raise FileNotFoundError(path)
        with translate_errors(path):
            head = get_client().head_object(Bucket=bucket, Key=key)
        return int(head["ContentLength"]), head["ETag"]

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Write `data` to `path` atomically, in parts if there is more than one."""
        if len(data) > bucket_files.PART:
            return self._upload_parts(path, memoryview(data))
        bucket, key = split_location(path)
        with translate_errors(path):
            get_client().put_object(Bucket=bucket, Key=key, Body=bytes(data))
        return None

    def _upload_parts(self, path: str, data: memoryview) -> None:
        """Upload `data`, which is longer than PART, to `path` by a multipart upload."""
        part_bytes = bucket_files.PART
        bucket, key = split_location(path)
        place = {"Bucket": bucket, "Key": key}
        with translate_errors(path):
            place["UploadId"] = get_client().create_multipart_upload(**place)["UploadId"]

            def put(number: int) -> dict[str, Any]:
                body = bytes(data[(number - 1) * part_bytes : number * part_bytes])
                answer = get_client().upload_part(**place, PartNumber=number, Body=body)
                return {"PartNumber": number, "ETag": answer["ETag"]}

            try:
                with ThreadPoolExecutor(bucket_files.UPLOADS) as threads:
                    parts = list(threads.map(put, range(1, -(-len(data) // part_bytes) + 1)))
                self.complete_upload(path, place, parts, len(data))
            except BaseException:
                # Parts of an upload that is not aborted stay stored and billed, but are not listed.
                with contextlib.suppress(Exception):
                    get_client().abort_multipart_upload(**place)
                raise

    def complete_upload(
        self, path: str, place: dict[str, str], parts: list[dict[str, Any]], length: int
    ) -> None:
        """Complete the multipart upload `place`, which has `length` bytes in `parts`."""
        from botocore.exceptions import ClientError

        try:
            get_client().complete_multipart_upload(**place, MultipartUpload={"Parts": parts})
        except ClientError as error:
            # A retry gets NoSuchUpload if the first attempt succeeded but its response was lost.
            if _get_code(error) != "NoSuchUpload" or self.measure_size(path) != length:
                raise

    def create(self, path: str, data: bytes) -> bool:
        """Write `data` only if no object is there; return whether this call wrote the object."""
        from botocore.exceptions import ClientError

        bucket, key = split_location(path)
        for _ in range(bucket_files.ATTEMPTS):
            try:
                with translate_errors(path):
                    get_client().put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
                return True
            except ClusterError as error:
                answer = error.__cause__
                code = _get_code(answer) if isinstance(answer, ClientError) else ""
                if code == "PreconditionFailed":
                    return self.get_object(path) == data
                if code != "ConditionalRequestConflict":
                    raise
                time.sleep(random.uniform(0, 0.5))  # a concurrent write is about to finish
        raise bucket_files.explain_collisions(path)

    def upload_file(self, local: str, path: str) -> None:
        """Upload the file `local` to `path` atomically."""
        with translate_errors(path):
            get_client().upload_file(local, *split_location(path))

    def download_file(self, path: str, local: str) -> None:
        """Download the object at `path` to the file `local`."""
        with translate_errors(path):
            get_client().download_file(*split_location(path), local)

    def list_sizes(self, folder: str) -> dict[str, int]:
        """Return the size in bytes of each object below `folder`, by location."""
        start = find_start(folder)
        return {
            start + item["Key"]: int(item["Size"])
            for page in _list_pages(folder)
            for item in page.get("Contents", [])
        }

    def iterate_files(self, folder: str) -> Iterator[str]:
        """Yield the locations of all objects below `folder`, in order, by one request a page."""
        yield from self._iterate_files(folder)

    def find_first(self, folder: str) -> str | None:
        """Return the first object below `folder` by location, but no hidden one."""
        return next(filter(is_file_name, self._iterate_files(folder, SHORT_PAGE)), None)

    def _iterate_files(self, folder: str, page_size: int | None = None) -> Iterator[str]:
        start = find_start(folder)
        for page in _list_pages(folder, page_size):
            yield from [start + item["Key"] for item in page.get("Contents", [])]

    def list_pages(self, folder: str, first: str) -> Iterator[Mapping[str, Described]]:
        """Yield pages that describe the objects directly in `folder`, from `first` on, in order."""
        start = find_start(folder)
        # S3 begins after the key that is given, so the last character of `first` is left out.
        for page in _list_pages(folder, Delimiter="/", StartAfter=split_location(first)[1][:-1]):
            yield {
                start + item["Key"]: (int(item["Size"]), item["ETag"])
                for item in page.get("Contents", [])
            }

    def list_folders(self, folder: str) -> list[str]:
        """Return the direct subfolders (common prefixes) of `folder`, unsorted."""
        start = find_start(folder)
        return [
            start + item["Prefix"].rstrip("/")
            for page in _list_pages(folder, Delimiter="/")
            for item in page.get("CommonPrefixes", [])
        ]

    def compute_content_keys(self, paths: Sequence[str]) -> list[str]:
        """Return the size and the ETag of each object, in order. Raises FileNotFoundError.

        S3 lists the ETags that a HEAD request returns.
        """
        found = self.describe_objects(paths)
        for path in paths:
            if path not in found:
                raise FileNotFoundError(path)
        return [bucket_files.format_content_key(*found[path]) for path in paths]

    def delete(self, path: str) -> None:
        """Remove the object at `path` if it exists."""
        bucket, key = split_location(path)
        with translate_errors(path):
            get_client().delete_object(Bucket=bucket, Key=key)

    def delete_batch(self, paths: Sequence[str]) -> None:
        """Remove the objects at `paths`, which lie in one bucket, by one request.

        Keys that S3 does not remove for a reason that passes are sent again. Raises ClusterError if
        S3 refuses to remove a key, once all others are removed.
        """
        try:
            refused = _delete_patiently(paths)
        except ClusterError as error:
            if getattr(error.__cause__, "response", None) is None:
                raise
            if _get_code(error.__cause__) not in NO_BATCHES:
                raise
            for _ in map_concurrently(self.delete, paths):
                pass
            return
        if refused:
            path, why = next(iter(refused.items()))
            others = f" ({len(refused):,} of {len(paths):,} objects)" if len(paths) > 1 else ""
            raise ClusterError(f"{path}: S3 did not delete the object{others}: {why}")

    def copy(self, path: str, target: str) -> None:
        """Copy the object at `path` to `target` on the server. Raises FileNotFoundError."""
        bucket, key = split_location(path)
        with translate_errors(path):
            get_client().copy({"Bucket": bucket, "Key": key}, *split_location(target))


def _list_pages(
    folder: str, page_size: int | None = None, **options: str
) -> Iterator[Mapping[str, Any]]:
    """Yield S3's answers to listing `folder`, each of up to `page_size` objects, or PAGE."""
    bucket, prefix = split_location(folder.rstrip("/") + "/")
    with translate_errors(folder):
        pages = get_client().get_paginator("list_objects_v2")
        size = {"PageSize": page_size or PAGE}
        yield from pages.paginate(Bucket=bucket, Prefix=prefix, PaginationConfig=size, **options)


def _delete_patiently(paths: Sequence[str]) -> dict[str, str]:
    """Delete the objects at `paths`, of one bucket; return why S3 keeps some, by location."""
    left = {split_location(path)[1]: path for path in paths}
    refused: dict[str, str] = {}
    began: float | None = None
    for attempts in itertools.count(1):
        problems = _delete_keys(paths[0], list(left))
        passing = {key: text for key, code, text in problems if code in retries.PASSING_CODES}
        refused |= {
            left[key]: text
            for key, code, text in problems
            if key not in passing and code != "NoSuchKey"
        }
        left = {key: left[key] for key in passing}
        if not left:
            break
        now = time.monotonic()
        began = now if began is None else began
        key, problem = next(iter(passing.items()))
        pause = retries.decide_pause(left[key], problem, now - began, attempts, answered=True)
        if pause is None:
            refused |= {left[key]: text for key, text in passing.items()}
            break
        time.sleep(pause)
    return refused


def _delete_keys(path: str, keys: Sequence[str]) -> list[tuple[str, str, str]]:
    """Delete `keys` of the bucket of `path`; return key, error code and problem of those left."""
    wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
    with translate_errors(path):
        answer = get_client().delete_objects(Bucket=split_location(path)[0], Delete=wanted)
    return [
        (error["Key"], error.get("Code", ""), f"{error.get('Code')} {error.get('Message', '')}")
        for error in answer.get("Errors", [])
    ]


def _get_code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


S3 = S3Objects()
