"""S3 buckets and compatible servers, by boto3: the locations `s3://bucket/key`.

boto3 honours `AWS_ENDPOINT_URL` and the other `AWS_*` variables. An object is put by one request,
or by one multipart upload.
"""

import contextlib
import functools
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from trainrig.errors import ClusterError, DataError
from trainrig.storage import bucket_files, retries
from trainrig.storage.backend import NothingThere
from trainrig.storage.bucket_files import split_location


@functools.cache
def get_client() -> Any:
    """Return the S3 client of this process, creating the client at the first call."""
    from boto3.session import Session
    from botocore.config import Config

    from trainrig.storage.s3_credentials import make_session

    options: Any = {"mode": "standard", "max_attempts": 1}  # `retries` retries instead
    config = Config(retries=options, connect_timeout=10, read_timeout=60)
    # Threads may not share boto3's default session, so the client gets a separate one.
    session = make_session()
    client = Session(botocore_session=session).client("s3", config=config)
    retries.register(client, session.get_credentials())
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
        raise ClusterError(
            f"{path}: {bucket_files.ATTEMPTS} conditional writes collided with other writers; run "
            "the same command again"
        )

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
        scheme, _, _ = folder.partition("://")
        bucket, prefix = split_location(folder.rstrip("/") + "/")
        with translate_errors(folder):
            pages = get_client().get_paginator("list_objects_v2")
            return {
                f"{scheme}://{bucket}/{item['Key']}": int(item["Size"])
                for page in pages.paginate(Bucket=bucket, Prefix=prefix)
                for item in page.get("Contents", [])
            }

    def list_folders(self, folder: str) -> list[str]:
        """Return the direct subfolders (common prefixes) of `folder`, unsorted."""
        scheme, _, _ = folder.partition("://")
        bucket, prefix = split_location(folder.rstrip("/") + "/")
        with translate_errors(folder):
            pages = get_client().get_paginator("list_objects_v2")
            return [
                f"{scheme}://{bucket}/{item['Prefix'].rstrip('/')}"
                for page in pages.paginate(Bucket=bucket, Prefix=prefix, Delimiter="/")
                for item in page.get("CommonPrefixes", [])
            ]

    def delete(self, path: str) -> None:
        """Remove the object at `path` if it exists."""
        bucket, key = split_location(path)
        with translate_errors(path):
            get_client().delete_object(Bucket=bucket, Key=key)

    def copy(self, path: str, target: str) -> None:
        """Copy the object at `path` to `target` on the server. Raises FileNotFoundError."""
        bucket, key = split_location(path)
        with translate_errors(path):
            get_client().copy({"Bucket": bucket, "Key": key}, *split_location(target))


def _get_code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


S3 = S3Objects()
