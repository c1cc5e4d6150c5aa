"""Child processes: supervised ones, ones killed with their group, and a home directory for all.

A supervised child's output is read; it can be asked to stop, and it does not outlive a dying
supervisor. Containers may run as a user without a home directory, which Ray and torch need.
"""

import atexit
import contextlib
import functools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from typing import IO, Any

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
        guard = str(resources.files("trainrig.processes").joinpath("orphan_guard.py"))
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


PREFIX = "trainrig-home-"


def ensure_home() -> None:
    """Set HOME and USER if they are missing, for this process and its children.

    Ray and torch refuse to start without them, and Ray writes its token to the home directory. A
    home made here is accessible to this user only, and is removed when this process ends. All calls
    in a process set the same home: Ray keeps the token of its first start, and does not write it to
    another home.
    """
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        entry = None
        # These are the variables that `getpass.getuser` reads.
        names = ("LOGNAME", "USER", "LNAME", "USERNAME")
        if not any(os.environ.get(name) for name in names):
            os.environ["USER"] = str(os.getuid())
    home = os.environ.get("HOME") or (entry.pw_dir if entry else "")
    # For a folder without read permission, `os.path.isdir` is False, but `Path.is_dir` raises.
    if home and os.path.isdir(home) and os.access(home, os.W_OK | os.X_OK):  # noqa: PTH112
        os.environ["HOME"] = home
        return
    os.environ["HOME"] = _make_home()


@functools.cache
def _make_home() -> str:
    made = tempfile.mkdtemp(prefix=PREFIX)
    maker = os.getpid()

    def remove() -> None:
        if os.getpid() == maker:
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return made
