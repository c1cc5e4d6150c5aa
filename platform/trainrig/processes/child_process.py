"""A supervised child process: start it, read its output, ask it to stop, kill it."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import IO

READ = 64 * 2**10  # bytes of output read at a time
LAST_OUTPUT_SECONDS = 5.0  # time limit for reading the rest of the pipe once the child has ended


class Child:
    """A child process `command` in a new process group that does not outlive this process.

    A separate thread passes its output, standard output and error together, to `hear` as it comes.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        hear: Callable[[bytes], None],
    ) -> None:
        guard = str(resources.files("trainrig.processes").joinpath("guard.py"))
        held, self._pipe = os.pipe()
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard, str(held), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(held,),
            )
        finally:
            os.close(held)
        assert self._guard.stdout is not None
        self._listener = threading.Thread(
            target=_listen, args=(self._guard.stdout, hear), name="output", daemon=True
        )
        self._listener.start()

    @property
    def pid(self) -> int:
        """Number of the child's process group, which is the process id of its guard."""
        return self._guard.pid

    def poll_group(self) -> int | None:
        """Return the exit code once the child has ended, or None while it runs.

        When the child has ended, the rest of its group is killed, and all output has been passed
        to `hear`. A negative code is the number of the signal that killed the child.
        """
        if self._guard.returncode is not None:
            return self._guard.returncode
        waiting = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self._guard.pid, waiting) is None:
            return None
        self.kill()  # the group's number cannot be reused before its leader has been waited for
        code = self._guard.wait()
        self._listener.join(LAST_OUTPUT_SECONDS)  # a process of another group may hold the pipe
        os.close(self._pipe)
        return code

    def ask(self) -> None:
        """Send SIGTERM to the child alone, not to its group, so that it ends cleanly."""
        with contextlib.suppress(BrokenPipeError):  # the child has just ended
            os.write(self._pipe, b"T")

    def kill(self) -> None:
        """Send SIGKILL to the whole group, unless the child has been waited for.

        Afterwards another process group may have its number.
        """
        if self._guard.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._guard.pid, signal.SIGKILL)


def _listen(output: IO[bytes], hear: Callable[[bytes], None]) -> None:
    with output:
        while piece := os.read(output.fileno(), READ):
            hear(piece)
