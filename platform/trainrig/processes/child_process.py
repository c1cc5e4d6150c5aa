"""A child process as its supervisor sees it: start, listen, ask to stop, kill."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import IO

READ = 64 * 2**10  # bytes of output taken at a time
LAST_OUTPUT_SECONDS = 5.0  # for what is still in the pipe once the child has ended


class Child:
    """`command`, in a process group of its own that does not outlive this process.

    What it prints goes to `hear` as it comes, out and err together, in a thread of its own.
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
        """Of the group that it runs in."""
        return self._guard.pid

    def poll_group(self) -> int | None:
        """The exit code once it has ended, and none of its group is left; negative: a signal.

        All that it printed has been heard then.
        """
        if self._guard.returncode is not None:
            return self._guard.returncode
        waiting = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self._guard.pid, waiting) is None:
            return None
        self.kill()  # the group's number is its own as long as its leader has not been waited for
        code = self._guard.wait()
        self._listener.join(LAST_OUTPUT_SECONDS)  # longer: a process of another group holds it
        os.close(self._pipe)
        return code

    def ask(self) -> None:
        """Ask it to end whole: SIGTERM, to its leader alone."""
        with contextlib.suppress(BrokenPipeError):  # just ended
            os.write(self._pipe, b"T")

    def kill(self) -> None:
        """SIGKILL to the whole group, unless it has ended: its number may be another's by then."""
        if self._guard.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._guard.pid, signal.SIGKILL)


def _listen(output: IO[bytes], hear: Callable[[bytes], None]) -> None:
    with output:
        while piece := os.read(output.fileno(), READ):
            hear(piece)
