"""Check of a bucket: may this user list, create, read and delete objects there?"""

import contextlib
import secrets
from collections.abc import Callable

from trainrig import storage
from trainrig.doctor.diagnosis import Diagnosis
from trainrig.errors import TrainrigError
from trainrig.storage.schemes import split_scheme

CREDENTIALS = "see docs/storage.md for credentials and rights; the bucket must exist"


def check_bucket(location: str) -> Diagnosis:
    """Check `location`, a folder in a bucket or on a disk, with an object that is deleted again.

    Raises ConfigError if the location has an unknown scheme, or its extra is not installed.
    """
    scheme, rest = split_scheme(location)
    if scheme and not rest.strip("/"):
        found = f"{location}: names no bucket"
        return Diagnosis("bucket", "problem", found, f"name one, as in {scheme}://BUCKET/runs")
    folder = storage.make_absolute(location).rstrip("/")
    probe = storage.join(folder, f"probe-{secrets.token_hex(8)}")
    data = probe.encode()

    def create() -> None:
        if not storage.create(probe, data):
            raise TrainrigError(f"{probe}: another object has this name")

    def read() -> None:
        if storage.read(probe) != data:
            raise TrainrigError(f"{probe}: the bytes that were read differ from those written")

    def find() -> None:
        if probe not in storage.list_files(folder):
            raise TrainrigError(f"{probe}: the new object is not listed")

    steps: dict[str, Callable[[], None]] = {
        "create": create,
        "read": read,
        "list": find,
        "delete": lambda: storage.delete(probe),
    }
    done = list[str]()
    for name, step in steps.items():
        try:
            with storage.briefly():
                step()
        except (TrainrigError, OSError) as error:
            if "create" in done:  # leave nothing behind, if deleting is allowed
                with contextlib.suppress(TrainrigError, OSError), storage.briefly():
                    storage.delete(probe)
            before = f" ({', '.join(done)} succeeded)" if done else ""
            found = f"{location}: cannot {name} objects{before}: {error}"
            return Diagnosis("bucket", "problem", found, CREDENTIALS)
        done.append(name)
    return Diagnosis("bucket", "ok", f"{location}: create, read, list and delete succeed")
