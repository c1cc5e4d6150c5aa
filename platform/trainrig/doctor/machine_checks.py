"""Checks of memory, disks, buckets and the limits of the operating system."""

import contextlib
import os
import resource
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from trainrig import storage
from trainrig.doctor.diagnosis import Diagnosis
from trainrig.errors import ConfigError, TrainrigError
from trainrig.launch.supervise.run_record import Home
from trainrig.parallel.layer_compilation import Compile, check_compiler
from trainrig.ray_runtime import start_checks
from trainrig.ray_runtime.ray_session import OBJECT_STORE_BYTES
from trainrig.storage.schemes import split_scheme
from trainrig.storage.writable import check_folder

MEMORY_INFO = Path("/proc/meminfo")
# Peak memory of all processes of the quickstart (docs/evidence/one-machine.md).
QUICKSTART_MEMORY = 3.2 * 2**30
INSTALL_DISK = 5e9  # bytes that an installation takes (docs/laptop.md)
RAY_FILES = 65_536  # Ray raises its limit of open files to this, if it may
FEWEST_FILES = 4_096  # below, Ray itself warns of connection errors


def check_memory() -> Diagnosis:
    """Check that there is memory for the quickstart, as the control group limits it."""
    total, free = read_memory()
    found = f"{_format_gib(free)} of {_format_gib(total)} available"
    if free >= QUICKSTART_MEMORY:
        return Diagnosis("memory", "ok", found)
    advice = f"the quickstart needs {_format_gib(QUICKSTART_MEMORY)}; end other processes, raise "
    advice += "the container's limit, or use fewer workers"
    return Diagnosis("memory", "warning", found, advice)


def read_memory() -> tuple[float, float]:
    """Return total and available memory in bytes: the machine's, or the control group's if less."""
    lines = dict(line.split(":", 1) for line in MEMORY_INFO.read_text().splitlines() if ":" in line)
    total = float(lines["MemTotal"].split()[0]) * 2**10
    free = float(lines["MemAvailable"].split()[0]) * 2**10
    for folder in start_checks.list_control_groups("memory"):
        with contextlib.suppress(OSError, ValueError):  # no limit, or no such file
            most = float((folder / "memory.max").read_text())
            used = float((folder / "memory.current").read_text())
            total = min(total, most)
            free = min(free, max(0.0, most - used))
    return total, free


def check_disk(folder: str) -> Diagnosis:
    """Check that `folder`, where runs write, can be written and has space."""
    return _check_space("disk", folder, "free some, or run trainrig in a folder of another disk")


def check_temporary_folder() -> Diagnosis:
    """Check that the folder of temporary files can be written and has space."""
    return _check_space("temporary", tempfile.gettempdir(), "free some, or set TMPDIR to a folder")


def check_records() -> Diagnosis:
    """Check that the folder of the runs' records can be written."""
    home = Home.choose().path
    if storage.is_remote(home):
        advice = f"to check a bucket, add the option: --bucket {home}"
        return Diagnosis("records", "ok", f"{home} is a bucket", advice)
    check_folder(home)
    return Diagnosis("records", "ok", f"{home} can be written")


def _check_space(subject: str, folder: str, mend: str) -> Diagnosis:
    check_folder(folder)
    free = shutil.disk_usage(folder).free
    found = f"{Path(folder).absolute()}: {free / 1e9:,.1f} GB free"
    if free >= INSTALL_DISK:
        return Diagnosis(subject, "ok", found)
    advice = f"{INSTALL_DISK / 1e9:g} GB is little for data and checkpoints; {mend}"
    return Diagnosis(subject, "warning", found, advice)


def check_shared_memory() -> Diagnosis:
    """Check that /dev/shm has space for the ranks, and for the object store of a local Ray."""
    start_checks.check_shared_memory()  # raises ConfigError with the advice
    free = shutil.disk_usage(start_checks.SHARED_MEMORY).free
    found = f"{start_checks.SHARED_MEMORY}: {free / 2**20:,.0f} MiB free"
    if free >= OBJECT_STORE_BYTES:
        return Diagnosis("shared memory", "ok", found)
    advice = f"Ray's object store needs {OBJECT_STORE_BYTES // 2**20} MiB and uses a slower disk; "
    advice += "Docker: --shm-size=1g; Kubernetes: an emptyDir of medium Memory"
    return Diagnosis("shared memory", "warning", found, advice)


def check_open_files() -> Diagnosis:
    """Check the limit of open files, which Ray raises towards the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return Diagnosis("open files", "ok", f"{soft:,} files, and no hard limit")
    found = f"{soft:,} files, of a hard limit of {hard:,}"
    if hard >= FEWEST_FILES:
        return Diagnosis("open files", "ok", found)
    advice = f"Ray warns below {FEWEST_FILES:,} files; raise the limit: `ulimit -n {RAY_FILES}`, "
    advice += f"Docker: --ulimit nofile={RAY_FILES}:{RAY_FILES}"
    return Diagnosis("open files", "warning", found, advice)


def check_threads() -> Diagnosis:
    """Check that the limits leave enough threads for a local Ray."""
    start_checks.check_threads()  # raises ConfigError with the advice
    limits = [start_checks.find_user_limit(), start_checks.find_group_limit()]
    left = [f"{limit.left:,} left of {limit.name}" for limit in limits if limit]
    return Diagnosis("threads", "ok", ", ".join(left) or "no limit")


def check_loopback() -> Diagnosis:
    """Check that this machine can connect to itself, as Ray's processes do."""
    start_checks.check_loopback()  # raises ConfigError with the advice
    return Diagnosis("loopback", "ok", f"{start_checks.LOOPBACK} accepts connections")


def check_compiler_for_layers() -> Diagnosis:
    """Check that layers can be compiled, which only runs with `training.compile` need."""
    try:
        check_compiler(Compile())
    except ConfigError as error:
        return Diagnosis("compiler", "warning", str(error), "runs without this table need none")
    return Diagnosis("compiler", "ok", f"{os.environ.get('CXX') or 'a C++ compiler'}, and headers")


MACHINE_CHECKS: dict[str, Callable[[], Diagnosis]] = {
    "memory": check_memory,
    "temporary": check_temporary_folder,
    "shared memory": check_shared_memory,
    "open files": check_open_files,
    "threads": check_threads,
    "loopback": check_loopback,
    "compiler": check_compiler_for_layers,
    "records": check_records,
}


def _format_gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"


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
