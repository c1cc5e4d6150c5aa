"""Checks of this machine before a local Ray starts, for problems that Ray reports late or not.

Each check takes milliseconds. The errors are ConfigError, because the same command would fail again
until the machine's administrator has fixed the problem.
"""

import contextlib
import os
import resource
import socket
import sys
from pathlib import Path

from trainrig.errors import ConfigError
from trainrig.processes.process_identity import PROC, read_user

SHARED_MEMORY = Path("/dev/shm")
# Bytes of shared memory for the semaphores of ranks: 64 KiB was enough for two ranks, 8 KiB was
# not. Ray's object store uses a folder instead if shared memory is too small.
SHARED_MEMORY_NEEDED = 1 * 2**20
LOOPBACK = "127.0.0.1"
ANSWER = 5.0  # time limit for this machine to connect to itself, in s
# Threads of a local Ray with a run of two workers: 269 were counted at the start.
THREADS_NEEDED = 280


def check_machine() -> None:
    """Raise ConfigError if this machine cannot start a local Ray with a run."""
    check_shared_memory()
    check_loopback()
    check_threads()


def check_shared_memory() -> None:
    """Raise ConfigError if shared memory is missing, read-only or full."""
    if sys.platform != "linux":
        return
    needed = f"{SHARED_MEMORY_NEEDED // 2**10:,} KiB"
    mend = f"mount it with {needed} or more (Docker: --shm-size=1g; Kubernetes: an emptyDir of "
    mend += "medium Memory), or free some"
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError as problem:
        raise ConfigError(f"{SHARED_MEMORY}: {problem.strerror}; {mend}") from None
    free = found.f_frsize * found.f_bavail
    if free < SHARED_MEMORY_NEEDED:
        raise ConfigError(
            f"{SHARED_MEMORY}: shared memory has {free // 2**10:,} KiB free, and a run needs "
            f"{needed}; {mend}"
        )
    if found.f_files and not found.f_favail:
        raise ConfigError(f"{SHARED_MEMORY}: shared memory has no space for more files; {mend}")
    if not os.access(SHARED_MEMORY, os.W_OK | os.X_OK) or found.f_flag & os.ST_RDONLY:
        raise ConfigError(f"{SHARED_MEMORY}: this user may not write to shared memory; {mend}")


def check_loopback() -> None:
    """Raise ConfigError if this machine cannot connect to itself at the loopback address."""
    try:
        with socket.socket() as listener:
            listener.bind((LOOPBACK, 0))
            listener.listen()
            socket.create_connection(listener.getsockname(), timeout=ANSWER).close()
    except OSError as problem:
        raise ConfigError(
            f"{LOOPBACK}: this machine cannot reach itself "
            f"({problem.strerror or problem}), but Ray's processes connect to each other "
            "there; bring the loopback interface up (`ip link set lo up`)"
        ) from None


def check_threads() -> None:
    """Raise ConfigError if a limit leaves too few threads for a local Ray."""
    for limit in (find_user_limit(), find_group_limit()):
        if limit and limit.left < THREADS_NEEDED:
            raise ConfigError(
                f"{limit.name}: {limit.most:,} threads and processes are allowed, of "
                f"which {max(0, limit.left):,} are left; a local Ray with two workers "
                f"needs {THREADS_NEEDED}. Raise the limit, or end other processes"
            )


def describe_thread_shortage() -> str:
    """Describe, in one line, why a process could not start another thread, and what to do."""
    found = [limit for limit in (find_user_limit(), find_group_limit()) if limit]
    limits = " and ".join(f"{limit.name} is {limit.most:,}" for limit in found)
    return (
        f"no more threads can be started{f': {limits}' if limits else ''}; raise the "
        "limit, ask for fewer workers, or end other processes"
    )


class ThreadLimit:
    """A limit on the number of threads, and how many are left."""

    def __init__(self, name: str, most: int, used: int) -> None:
        self.name = name
        self.most = most
        self.left = most - used


def find_user_limit() -> ThreadLimit | None:
    """Return the limit on this user's threads; None if there is none, as for root."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.getuid() == 0 or most == resource.RLIM_INFINITY or not PROC.is_dir():
        return None
    used = 0
    user = os.getuid()
    for path in PROC.glob("[0-9]*"):
        if read_user(int(path.name)) == user:
            with contextlib.suppress(OSError):  # the process has ended
                used += len(list((path / "task").iterdir()))
    return ThreadLimit("ulimit -u", most, used)


def find_group_limit() -> ThreadLimit | None:
    """Return the control group's limit that leaves the fewest threads; None if there is none."""
    found = list[ThreadLimit]()
    for folder in list_control_groups("pids"):
        with contextlib.suppress(
            OSError, ValueError
        ):  # the value is "max", or the group has no such file
            most = int((folder / "pids.max").read_text())
            used = int((folder / "pids.current").read_text())
            found.append(ThreadLimit(f"{folder}/pids.max", most, used))
    return min(found, key=lambda limit: limit.left, default=None)


def list_control_groups(controller: str) -> list[Path]:
    """Return the folders of the control groups that may limit this process.

    `controller` is the kind of limit, such as `pids` or `memory`.
    """
    found = list[Path]()
    with contextlib.suppress(OSError):
        for line in (PROC / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = Path("/sys/fs/cgroup", controller if controllers else "")
            group = root / path.lstrip("/")
            # In a container the path may be a path of the host, and the container's group is the
            # root folder.
            inside = [folder for folder in group.parents if folder.is_relative_to(root)]
            found += [group, *inside]
    return found
