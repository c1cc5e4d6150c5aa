"""Identification of the process at the other end of a Unix socket by the kernel."""

import socket
import struct
import sys
from dataclasses import dataclass

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
