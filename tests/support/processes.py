"""Processes that tests look for, and free ports."""

import contextlib
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


def find_free_ports(count: int) -> list[int]:
    """Return ports of this machine that are free now."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
