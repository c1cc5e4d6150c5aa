"""Child processes that a block holds: at its end nothing of them is left.

For a child that is to be listened to, asked to stop, and not to outlive a supervisor that dies, see
`child_process`.
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

    When the block ends, however it does, all of the group is killed and its pipes are closed.
    """
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        kill_group(process)


def kill_group(leader: "subprocess.Popen[bytes]") -> None:
    """Kill all that is left of the group of `leader`, wait for it, and close its pipes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: of a zombie
        os.killpg(leader.pid, signal.SIGKILL)
    end_process(leader)


def end_process(process: "subprocess.Popen[bytes]") -> None:
    """Kill `process`, unless it has ended, wait for it, and close its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # what was written and never read
                pipe.close()
