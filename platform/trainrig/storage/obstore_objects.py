"""Google Cloud Storage and Azure by obstore: the locations `gs://bucket/key`, `az://container/key`.

Credentials come from the machine or from the environment variables that obstore names:
`GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME` and others. obstore does not retry
here, except for the parts of a large upload: `retries` sets the limits, as for S3.

Limits of obstore: a folder cannot be listed if a key below it has an empty part ("a//b"), and a
process that forked after its first request cannot send another.
"""

import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from trainrig.errors import ClusterError, ConfigError
from trainrig.optional_packages import describe_install
from trainrig.storage import bucket_files, retries
from trainrig.storage.backend import NothingThere, is_file_name
from trainrig.storage.bucket_files import Described, find_start, split_location
from trainrig.storage.concurrent_requests import map_concurrently

Result = TypeVar("Result")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_BEYOND_END = ("status code: 416", "Wanted range starting at")


def make_google_store(bucket: str, **options: Any) -> Any:
    """Return obstore's client of a bucket of Google Cloud Storage."""
    from obstore.store import GCSStore

    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        address = emulator if "://" in emulator else f"http://{emulator}"
        key: dict[str, Any] = {"client_email": "", "private_key": "", "private_key_id": ""}
        key |= {"gcs_base_url": address, "disable_oauth": True}
        options["config"] = {"service_account_key": json.dumps(key)}
    return GCSStore(bucket, **options)


def make_azure_store(container: str, **options: Any) -> Any:
    """Return obstore's client of a container of Azure Blob Storage."""
    from obstore.store import AzureStore

    return AzureStore(container, **options)


class ObstoreObjects(bucket_files.BucketFiles):
    """Buckets of one cloud, which `make_store` opens."""

    def __init__(self, extra: str, make_store: Callable[..., Any]) -> None:
        """Use the stores of `make_store`; `extra` is trainrig's extra that installs obstore."""
        try:
            import obstore
        except ImportError:
            raise ConfigError(
                f"the package obstore is not installed; run: {describe_install(extra)}"
            ) from None
        self._obstore: Any = obstore
        self._make_store = make_store
        self._stores: dict[tuple[str, float], Any] = {}
        self._process: int | None = None  # the process that sent the first request

    def _get_store(self, bucket: str, patient: bool) -> Any:
        """Return the client of `bucket`, which itself retries requests if it is `patient`."""
        seconds = retries.get_retry_seconds() if patient else 0.0
        if (bucket, seconds) not in self._stores:
            retry = {
                "max_retries": 1_000 if patient else 0,
                "retry_timeout": timedelta(seconds=seconds),
                "backoff": {
                    "init_backoff": timedelta(seconds=0.1),
                    "max_backoff": timedelta(seconds=retries.LONGEST_PAUSE),
                },
            }
            client = {
                "allow_http": True,  # addresses are https:// unless the user names an emulator
                "connect_timeout": timedelta(seconds=10),
                "read_timeout": timedelta(seconds=60),
                # Limits a whole response, however large; `read_timeout` ends one that stalls.
                "timeout": timedelta(days=7),
            }
            made = self._make_store(bucket, client_options=client, retry_config=retry)
            self._stores[bucket, seconds] = made
        return self._stores[bucket, seconds]

    def _send(
        self, path: str, request: Callable[[Any, str], Result], patient: bool = False
    ) -> Result:
        """Return the result of `request`, which gets the client and the key of `path`.

        The request is repeated while it fails for a reason that passes. AlreadyExistsError of
        obstore is raised as it is.
        """
        here = os.getpid()
        self._process = self._process or here
        if self._process != here:
            raise ClusterError(
                f"{path}: this process was forked after its parent had used the bucket, and "
                "obstore cannot send requests then; start processes by spawn or forkserver"
            )
        bucket, key = split_location(path)
        began = time.monotonic() if patient else None  # a patient client has retried by itself
        attempts = 0
        while True:
            try:
                return request(self._get_store(bucket, patient), key)
            except FileNotFoundError as error:
                if _find_code(error) in _NO_BUCKET:
                    raise bucket_files.explain_no_bucket(path) from None
                raise FileNotFoundError(path) from None
            except self._obstore.exceptions.AlreadyExistsError:
                raise
            except ValueError as error:  # such as a key with an empty part, "." or ".."
                raise ConfigError(
                    f"{path}: this storage has no such key ({error}); leave out empty parts, "
                    "'.' and '..'"
                ) from None
            except self._obstore.exceptions.BaseError as error:
                text = str(error).partition("\n\nDebug source")[0]
                if any(sign in text for sign in _BEYOND_END):
                    raise NothingThere(path) from None
                if _find_code(error) in _NO_BUCKET:
                    raise bucket_files.explain_no_bucket(path) from None
                began = began or time.monotonic()
                attempts += 1
                pause = None
                if _is_passing(text):
                    waited = time.monotonic() - began
                    answered = _STATUS.search(text) is not None
                    pause = retries.decide_pause(path, text, waited, attempts, answered)
                if pause is None:
                    raise ClusterError(f"{path}: the storage answers: {text}") from error
            time.sleep(pause)

    def get_object(self, path: str, begin: int = 0, end: int | None = None) -> bytes:
        """Download the object at `path` or a range of its bytes."""

        def get(store: Any, key: str) -> bytes:
            if end is None:
                return bytes(self._obstore.get(store, key).bytes())
            return bytes(self._obstore.get_range(store, key, start=begin, end=end))

        return self._send(path, get)

    def head_object(self, path: str) -> tuple[int, str]:
        """Return the size of the object at `path` and its ETag. Raises FileNotFoundError."""
        if not split_location(path)[1]:
            raise FileNotFoundError(path)
        head = self._send(path, self._obstore.head)
        return int(head["size"]), str(head["e_tag"])

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Write `data` to `path` atomically, in parts if there is more than one."""
        if len(data) > bucket_files.PART:
            return self._upload(path, bytes(data), len(data))
        body = bytes(data)

        def put(store: Any, key: str) -> None:
            self._obstore.put(store, key, body, use_multipart=False)

        return self._send(path, put)

    def _upload(self, path: str, source: bytes | Path, length: int) -> None:
        """Upload `source`, which has `length` bytes, in parts that are retried one by one."""

        def put(store: Any, key: str) -> None:
            self._obstore.put(
                store,
                key,
                source,
                chunk_size=bucket_files.PART,
                max_concurrency=bucket_files.UPLOADS,
            )

        try:
            self._send(path, put, patient=True)
        except FileNotFoundError:
            # A retry finds no upload if the first attempt to complete it succeeded, but its
            # response was lost.
            if self.measure_size(path) != length:
                raise

    def create(self, path: str, data: bytes) -> bool:
        """Write `data` only if no object is there; return whether this call wrote the object."""
        for _ in range(bucket_files.ATTEMPTS):
            try:
                self._send(
                    path,
                    lambda store, key: self._obstore.put(store, key, data, mode="create"),
                )
                return True
            except self._obstore.exceptions.AlreadyExistsError:
                try:
                    return self.get_object(path) == data
                except FileNotFoundError:
                    time.sleep(random.uniform(0, 0.5))  # a concurrent write is about to finish
        raise bucket_files.explain_collisions(path)

    def upload_file(self, local: str, path: str) -> None:
        """Upload the file `local` to `path` atomically."""
        self._upload(path, Path(local), Path(local).stat().st_size)

    def download_file(self, path: str, local: str) -> None:
        """Download the object at `path` to the file `local`."""

        def get(store: Any, key: str) -> None:
            with Path(local).open("wb") as file:
                for block in self._obstore.get(store, key).stream():
                    file.write(block)

        self._send(path, get)

    def list_sizes(self, folder: str) -> dict[str, int]:
        """Return the size in bytes of each object below `folder`, by location."""
        start = find_start(folder)
        found = self._send(
            folder.rstrip("/"), lambda store, key: self._obstore.list(store, key or None).collect()
        )
        return {start + item["path"]: int(item["size"]) for item in found}

    def iterate_files(self, folder: str) -> Iterator[str]:
        """Yield the locations of all objects below `folder`, in order."""
        yield from self.list_sizes(folder)

    def find_first(self, folder: str) -> str | None:
        """Return the first object below `folder` by location, but no hidden one."""
        start = find_start(folder)

        def find(store: Any, key: str) -> str | None:
            pages = self._obstore.list(store, key or None)
            locations = (start + item["path"] for page in pages for item in page)
            return next(filter(is_file_name, locations), None)

        return self._send(folder.rstrip("/"), find)

    def list_pages(self, folder: str, first: str) -> Iterator[Mapping[str, Described]]:
        """Yield one page that describes all objects directly in `folder`."""
        start = find_start(folder)
        found = self._send(
            folder.rstrip("/"),
            lambda store, key: self._obstore.list_with_delimiter(store, key or None),
        )
        yield {
            start + item["path"]: (int(item["size"]), str(item["e_tag"]))
            for item in found["objects"]
        }

    def list_folders(self, folder: str) -> list[str]:
        """Return the direct subfolders (common prefixes) of `folder`, unsorted."""
        start = find_start(folder)
        found = self._send(
            folder.rstrip("/"),
            lambda store, key: self._obstore.list_with_delimiter(store, key or None),
        )
        return [start + prefix for prefix in found["common_prefixes"]]

    def delete(self, path: str) -> None:
        """Remove the object at `path` if it exists."""
        try:
            self._send(path, self._obstore.delete)
        except FileNotFoundError:
            return

    def delete_batch(self, paths: Sequence[str]) -> None:
        """Remove the objects at `paths`, which lie in one bucket.

        Azure removes 256 of them by one request. Google gets a request for each, ten at a time.
        """
        keys = [split_location(path)[1] for path in paths]
        try:
            self._send(paths[0], lambda store, _: self._obstore.delete(store, keys))
        except FileNotFoundError:
            # One key is gone already, after which obstore may have left others.
            for _ in map_concurrently(self.delete, paths):
                pass

    def copy(self, path: str, target: str) -> None:
        """Copy the object at `path` to `target`, on the server within one bucket."""
        to_bucket, to_key = split_location(target)
        if split_location(path)[0] == to_bucket:
            self._send(path, lambda store, key: self._obstore.copy(store, key, to_key))
            return
        with TemporaryDirectory(prefix="trainrig-") as folder:
            local = str(Path(folder) / "copy")
            self.download_file(path, local)
            self.upload_file(local, target)


def _find_code(error: Exception) -> str:
    """Return the error code of the storage in the message of obstore's `error`, or ""."""
    found = _CODE.search(str(error))
    return found[1] if found else ""


def _is_passing(text: str) -> bool:
    """Return whether the error that obstore describes by `text` may pass by itself."""
    status = _STATUS.search(text)
    if status is None:
        return "HTTP error" in text and "certificate" not in text
    code = _CODE.search(text)
    known = code is not None and code[1] in retries.PASSING_CODES
    return int(status[1]) in retries.PASSING_STATUS or known


def make_google() -> ObstoreObjects:
    """Return the storage of `gs://` locations."""
    return ObstoreObjects("gcs", make_google_store)


def make_azure() -> ObstoreObjects:
    """Return the storage of `az://` locations."""
    return ObstoreObjects("azure", make_azure_store)
