"""One client of an object store, measured in a process of its own by `test_storage_clients.py`.

python tests/benchmarks/storage_client.py CLIENT ENDPOINT SLOW_ENDPOINT

Prints one JSON object: seconds and CPU seconds of each task, memory, and how the client takes
races, bursts of 503, a fork and lost answers.
"""

import hashlib
import json
import os
import resource
import secrets
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

BUCKET = "bench"
SMALL, MANY = 10_000, 400  # bytes, objects
LARGE = 256 * 2**20  # bytes
RANGE, RANGES = 2**20, 128
THREADS = 16
BURST = 3.0  # s without an answer other than 503


class Today:
    """`trainrig.storage`, which uses boto3."""

    def __init__(self, endpoint: str) -> None:
        os.environ["AWS_ENDPOINT_URL"] = endpoint
        from trainrig import storage

        self.storage = storage
        self.root = f"s3://{BUCKET}/"

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self.storage.write(self.root + key, data)

    def get(self, key: str) -> Any:
        """Return all bytes of an object."""
        return self.storage.read(self.root + key)

    def get_range(self, key: str, begin: int, end: int) -> Any:
        """Return the bytes from `begin` up to `end`."""
        return self.storage.read_range(self.root + key, begin, end)

    def size(self, key: str) -> int:
        """Return the size of an object."""
        return self.storage.measure_size(self.root + key)

    def list(self, folder: str) -> int:
        """Return the number of objects below `folder`."""
        return len(self.storage.list_sizes(self.root + folder))

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether it was written."""
        return self.storage.create(self.root + key, data)

    def hash(self, key: str) -> str:
        """Return the SHA-256 of an object, read as a stream."""
        return self.storage.compute_sha256(self.root + key)


class Obstore:
    """obstore: a Rust library for S3, Google Cloud Storage and Azure."""

    def __init__(self, endpoint: str) -> None:
        import obstore
        from obstore.store import S3Store

        self.obstore = obstore
        self.store = S3Store(
            BUCKET,
            endpoint=endpoint,
            region="us-east-1",
            client_options={"allow_http": True, "timeout": timedelta(seconds=60)},
            retry_config={
                "max_retries": 1_000,
                "retry_timeout": timedelta(seconds=180),
                "backoff": {"max_backoff": timedelta(seconds=5)},
            },
        )

    def put(self, key: str, data: bytes) -> None:
        """Write an object; obstore splits large ones into parts."""
        self.obstore.put(self.store, key, data, chunk_size=16 * 2**20, max_concurrency=4)

    def get(self, key: str) -> Any:
        """Return all bytes of an object."""
        return self.obstore.get(self.store, key).bytes()

    def get_range(self, key: str, begin: int, end: int) -> Any:
        """Return the bytes from `begin` up to `end`."""
        return self.obstore.get_range(self.store, key, start=begin, end=end)

    def size(self, key: str) -> int:
        """Return the size of an object."""
        return self.obstore.head(self.store, key)["size"]

    def list(self, folder: str) -> int:
        """Return the number of objects below `folder`."""
        return len(self.obstore.list(self.store, folder + "/").collect())

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether it was written."""
        try:
            self.obstore.put(self.store, key, data, mode="create")
        except self.obstore.exceptions.AlreadyExistsError:
            return False
        return True

    def hash(self, key: str) -> str:
        """Return the SHA-256 of an object, read as a stream."""
        digest = hashlib.sha256()
        reader = self.obstore.open_reader(self.store, key, buffer_size=8 * 2**20)
        while block := reader.read(8 * 2**20):
            digest.update(memoryview(block))
        return digest.hexdigest()


class S3Fs:
    """s3fs, the S3 file system of fsspec, on aiobotocore."""

    def __init__(self, endpoint: str) -> None:
        import s3fs

        self.files = s3fs.S3FileSystem(endpoint_url=endpoint, use_listings_cache=False)
        self.files.retries = 60

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self.files.pipe_file(f"{BUCKET}/{key}", data)

    def get(self, key: str) -> Any:
        """Return all bytes of an object."""
        return self.files.cat_file(f"{BUCKET}/{key}")

    def get_range(self, key: str, begin: int, end: int) -> Any:
        """Return the bytes from `begin` up to `end`."""
        return self.files.cat_file(f"{BUCKET}/{key}", start=begin, end=end)

    def size(self, key: str) -> int:
        """Return the size of an object."""
        self.files.invalidate_cache()
        return int(self.files.size(f"{BUCKET}/{key}"))

    def list(self, folder: str) -> int:
        """Return the number of objects below `folder`."""
        self.files.invalidate_cache()
        return len(self.files.find(f"{BUCKET}/{folder}"))

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether it was written."""
        try:
            self.files.pipe_file(f"{BUCKET}/{key}", data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:  # s3fs gives the answer 412 to a race no class of its own
            if "PreconditionFailed" not in str(error):
                raise
            return False
        return True

    def hash(self, key: str) -> str:
        """Return the SHA-256 of an object, read as a stream."""
        digest = hashlib.sha256()
        with self.files.open(f"{BUCKET}/{key}", "rb", block_size=8 * 2**20) as stream:
            while block := stream.read(8 * 2**20):
                digest.update(block)
        return digest.hexdigest()


CLIENTS: dict[str, Callable[[str], Any]] = {"boto3": Today, "obstore": Obstore, "s3fs": S3Fs}


def get_memory() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(task: Callable[[], object]) -> dict[str, float]:
    """Return the seconds and the CPU seconds of this process that `task` takes."""
    began, used = time.perf_counter(), time.process_time()
    task()
    return {
        "seconds": round(time.perf_counter() - began, 4),
        "cpu_seconds": round(time.process_time() - used, 4),
    }


def run_threads(task: Callable[[int], object], count: int) -> list[Any]:
    """Run `task` for each number below `count` in THREADS threads, and return the results."""
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(task, range(count)))


def race(client: Any, rounds: int = 20) -> int:
    """Return in how many rounds exactly one of THREADS writers creates an object."""
    right = 0
    for number in range(rounds):
        start = threading.Barrier(THREADS)
        key = f"lock/{secrets.token_hex(4)}-{number}"

        def compete(writer: int, start: Any = start, key: str = key) -> bool:
            start.wait()
            return bool(client.create(key, b"%d" % writer))

        right += run_threads(compete, THREADS).count(True) == 1
    return right


def outlast(client: Any, endpoint: str) -> dict[str, Any]:
    """Return how many of 48 reads outlast a burst of 503, and the seconds of all of them."""
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/refuse/{BURST}", method="PUT"))

    def attempt(number: int) -> str:
        try:
            client.get(f"small/{number}")
        except Exception as error:
            return type(error).__name__
        return ""

    began = time.perf_counter()
    failed = [name for name in run_threads(attempt, 48) if name]
    seconds = round(time.perf_counter() - began, 2)
    return {"failed": len(failed), "errors": sorted(set(failed)), "seconds": seconds}


def survives_fork(client: Any, patience: float = 5.0) -> bool:
    """Return whether a forked child can read an object after this process has read one."""
    child = os.fork()
    if child == 0:
        client.get("small/0")
        os._exit(0)
    until = time.monotonic() + patience
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def main(name: str, endpoint: str, slow: str) -> None:
    """Measure the client `name` and print the result as JSON."""
    before = get_memory()
    began = time.perf_counter()
    client = CLIENTS[name](endpoint)
    small, large = os.urandom(SMALL), os.urandom(LARGE)
    found: dict[str, Any] = {}
    client.put("small/0", small)
    found["first_request_seconds"] = round(time.perf_counter() - began, 2)
    found["memory_of_client_mib"] = round(get_memory() - before - LARGE / 2**20, 1)
    tasks: dict[str, Callable[[], object]] = {
        "write small": lambda: [client.put(f"small/{n}", small) for n in range(MANY)],
        "read small": lambda: [client.get(f"small/{n}") for n in range(MANY)],
        "read small, 16 threads": lambda: run_threads(lambda n: client.get(f"small/{n}"), MANY),
        "sizes": lambda: [client.size(f"small/{n}") for n in range(MANY)],
        "write large": lambda: client.put("large", large),
        "ranges of 1 MiB, 16 threads": lambda: run_threads(
            lambda n: client.get_range("large", n * RANGE, (n + 1) * RANGE), RANGES
        ),
        "read large": lambda: client.get("large"),
        "hash large": lambda: client.hash("large"),
    }
    found["tasks"] = {task: measure(action) for task, action in tasks.items()}
    assert bytes(client.get("small/3")) == small
    assert bytes(client.get_range("large", 5, 70_000)) == large[5:70_000]
    assert client.hash("large") == hashlib.sha256(large).hexdigest()
    found["peak_mib"] = round(get_memory(), 1)
    run_threads(lambda n: client.put(f"many/{n:05}", b""), 5_000)
    found["tasks"]["list 5,000"] = measure(lambda: client.list("many"))
    assert client.list("many") == 5_000
    found["rounds_with_one_winner_of_20"] = race(client)
    found["burst"] = outlast(client, endpoint)
    found["survives_fork"] = survives_fork(client)
    other = CLIENTS[name](slow) if name != "boto3" else reset(slow)
    run_threads(lambda n: other.put(f"small/{n}", small), MANY)
    found["tasks"]["read small, 16 threads, 20 ms"] = measure(
        lambda: run_threads(lambda n: other.get(f"small/{n}"), MANY)
    )
    print(json.dumps(found), flush=True)
    os._exit(0)  # a library's threads must not hold up the measurement


def reset(endpoint: str) -> Today:
    """Return a client of trainrig.storage for another address."""
    from trainrig.storage import s3_objects

    s3_objects.get_client.cache_clear()
    return Today(endpoint)


if __name__ == "__main__":
    main(*sys.argv[1:])
