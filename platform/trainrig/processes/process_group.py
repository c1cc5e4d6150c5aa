"""Child processes that are killed with their whole group at the end of a block.

For a child whose output is read, that can be asked to stop, and that does not outlive a dying
supervisor, see `child_process`.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def hold_group(command: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """Start `command`, with `options` of Popen, as the leader of a process group.

    When the block ends, also by an error, the whole group is killed and its pipes are closed.
    """
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        kill_group(process)


def kill_group(leader: "subprocess.Popen[bytes]") -> None:
    """Kill the remaining processes in the group of `leader`, wait for it, and close its pipes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS raises it for a zombie
        os.killpg(leader.pid, signal.SIGKILL)
    end_process(leader)


def end_process(process: "subprocess.Popen[bytes]") -> None:
    """Kill `process` if it is still running, wait for it, and close its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # buffered data was never read
                pipe.close()
