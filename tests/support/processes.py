"""Processes that tests look for, and free ports."""

import contextlib
import random
import socket

import psutil

LONG = 60.0  # s: far above what any process takes to end


def has_ended(pid: int, seconds: float = LONG) -> bool:
    """Return whether the process ends within the bound."""
    try:
        psutil.Process(pid).wait(seconds)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


# Linux gives these ports to nobody who asks for any free port, and Ray's workers have those below.
# So a process that chooses one is nearly alone with its choice until it listens.
UNASSIGNED_PORTS = range(20_000, 32_768)


def find_free_ports(count: int) -> list[int]:
    """Return ports of this machine that are free now."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().choice(UNASSIGNED_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found
