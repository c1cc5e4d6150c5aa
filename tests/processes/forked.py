"""Functions that the processes of test_fork_server.py run."""

import os
import sys
import time
from pathlib import Path

from trainrig.processes.fork_server import ForkedProcess, ServerAddress


def tell(channel):
    """Report what this process sees, and return the answer."""
    print("to the output of whoever asked")
    seen = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "folder": str(Path.cwd()),
        "variable": os.environ.get("TOLD"),
        "imported": "wave" in sys.modules,
        "input": sys.stdin.read(),
    }
    channel.send((seen, channel.recv()))
    channel.send(channel.recv())


def fail(channel):
    """Raise an error."""
    raise RuntimeError(channel.recv())


def stay(channel):
    """Report that the process runs, and never end."""
    channel.send(channel.recv())
    while True:
        time.sleep(60)


def take(channel):
    """Report that the process runs, and on request allocate all memory."""
    channel.send(channel.recv())
    channel.recv()
    taken = []
    while True:
        taken.append(b"\1" * 2**20)


def keep_one(name, token, path):
    """Start a process that stays, write its pid to `path`, and stay as well."""
    kept = ForkedProcess(ServerAddress(name, token), "forked:stay", "here")
    assert kept.receive() == "here"
    Path(path).write_text(str(kept.pid))
    time.sleep(600)


if __name__ == "__main__":
    keep_one(*sys.argv[1:])
