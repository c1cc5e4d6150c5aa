"""Unique identities of processes, to check whether they still live and to kill them safely.

Process ids are reused, but a process id together with the start time of the process and the boot
id of its machine is unique. Signals are sent only to a process with the same identity: an id
that was read from a file, or received some time ago, may belong to another user's process by
now. The kernel identifies the process at the other end of a Unix socket.
"""

import contextlib
import errno
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

PROC = Path("/proc")


class Process(BaseModel):
    """Identity of a process, which no other process on any machine shares."""

    model_config = ConfigDict(frozen=True)

    host: str
    boot: str  # id of the machine's current boot; empty on a system without one
    pid: int
    process_began: str  # start time in ticks since boot
    user: int  # real user id

    @classmethod
    def here(cls) -> Self:
        """Return the identity of this process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the identity of the live process `pid` of this machine."""
        user = read_user(pid)
        return cls(
            host=socket.gethostname(),
            boot=read_boot_id(),
            pid=pid,
            process_began=read_start_time(pid) or "",
            user=os.getuid() if user is None else user,
        )

    def gone(self) -> bool:
        """Return whether the process is known to be dead."""
        here = (self.host, self.boot) == (socket.gethostname(), read_boot_id())
        return here and bool(self.boot) and not self._is_there()

    def kill(self) -> None:
        """Send SIGKILL to the process if it still lives and belongs to this user.

        No signal is sent if the process id belongs to another process or another user by now.
        """
        if self.boot and PROC.is_dir():
            here = (self.host, self.boot) == (socket.gethostname(), read_boot_id())
            if here and self.user == os.getuid():
                kill_if(self.pid, lambda pid: self._is_there())
        else:  # a system without /proc, where only the process id is known
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)

    def _is_there(self) -> bool:
        same = read_start_time(self.pid) == self.process_began
        return same and read_user(self.pid) == self.user


def kill_if(pid: int, holds: Callable[[int], bool]) -> bool:
    """Send SIGKILL to process `pid` if `holds(pid)`; return whether it was sent.

    The process is held by a pidfd meanwhile, so that no other process can reuse its id.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            handle = os.pidfd_open(pid)
        except (AttributeError, OSError) as problem:
            if isinstance(problem, OSError) and problem.errno != errno.ENOSYS:
                raise
            if found := holds(pid):  # an old kernel, or no Linux
                os.kill(pid, signal.SIGKILL)
            return found
        try:
            if found := holds(pid):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            return found
        finally:
            os.close(handle)
    return False


def descends_from(pid: int, ancestor: int) -> bool:
    """Return whether process `pid` was started by `ancestor`, or by one of its descendants.

    Always returns True on a system without /proc.
    """
    if not PROC.is_dir():
        return True
    while pid > 1:
        fields = _read_stat(pid)
        pid = int(fields[1]) if fields else 0
        if pid == ancestor:
            return True
    return False


def find_descendants(ancestor: int) -> set[int]:
    """Return the ids of the processes below `ancestor`; empty on a system without /proc."""
    pids = {int(path.name) for path in PROC.glob("[0-9]*")} - {ancestor}
    return {pid for pid in pids if descends_from(pid, ancestor)}


def read_boot_id() -> str:
    """Return the id of this machine's current boot, or "" on a system other than Linux."""
    path = PROC / "sys/kernel/random/boot_id"
    return path.read_text().strip() if path.exists() else ""


def read_start_time(pid: int) -> str | None:
    """Return the start time of process `pid`, in ticks since boot; None if it does not exist."""
    fields = _read_stat(pid)
    return None if fields is None or fields[0] == "Z" else fields[19]


def read_user(pid: int) -> int | None:
    """Return the real user id of process `pid`; None if there is no such process."""
    try:
        status = (PROC / str(pid) / "status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return None


def _read_stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third on, as proc(5) numbers them."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()


def find_children(names: Collection[str]) -> dict[str, int]:
    """Return the ids of this process's children by their command `names`.

    Returns an empty dictionary on a system without /proc.
    """
    found = {}
    for path in PROC.glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # the process has ended
            name = path.read_text().strip()
            fields = _read_stat(pid := int(path.parent.name))
            if name in names and fields and int(fields[1]) == os.getpid():
                found[name] = pid
    return found


def read_end(pid: int) -> str | None:
    """Describe how the child `pid` of this process ended; return None while it lives.

    The status is left to be read by the code that started the child.
    """
    try:
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # another thread has read its status
        return "has ended"
    if end is None:
        return None
    if end.si_code == os.CLD_EXITED:
        return f"ended with {end.si_status}"
    return f"was killed by {signal.Signals(end.si_status).name}"


CREDENTIALS = "3i"  # struct ucred: unix(7)


@dataclass(frozen=True)
class Peer:
    """The process that connected to a Unix socket, or that listens at it."""

    pid: int
    user: int


def read_peer(connection: socket.socket) -> Peer | None:
    """Return the process at the other end of a Unix socket; None on a system other than Linux."""
    if sys.platform != "linux":
        return None
    size = struct.calcsize(CREDENTIALS)
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, user, _ = struct.unpack(CREDENTIALS, found)
    return Peer(pid, user)


def find_listener(path: str, timeout: float) -> Peer | None:
    """Return the process that listens at the Unix socket `path`; None if it is unknown.

    Raises OSError if no process listens there.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(timeout)
        probe.connect(path)
        return read_peer(probe)
