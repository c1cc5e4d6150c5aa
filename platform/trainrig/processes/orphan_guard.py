"""Guard between a job supervisor and its child, so that no child outlives its supervisor.

The guard is run as a script in a new session: `orphan_guard.py PIPE COMMAND…`. It starts the
command in its process group, and exits with the same status as the command. A byte in the pipe asks
the command to stop. When the pipe closes, the supervisor has died, and the guard kills the whole
group, so that no driver of this attempt runs during the next one. When the guard dies, the kernel
kills the command.

The guard imports very little, because it must start quickly and be an unlikely victim of the
kernel's OOM killer.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time

# A SIGTERM to the whole group reaches the guard and the command, which must not get a second one.
# A request in the pipe is the same stop as a SIGTERM if it comes within TOGETHER seconds after the
# signal, or up to MOMENT seconds before the signal. Each request therefore waits for MOMENT.
TOGETHER = 2.0
MOMENT = 0.25
PR_SET_PDEATHSIG = 1  # prctl(2)
MORE_LIKELY = "300"  # oom_score_adj: the OOM killer takes the command before its supervisor


def main(pipe: int, command: list[str]) -> None:
    """Run `command` until it ends, or until the other end of `pipe` is closed."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    child = _start(command)
    signalled = float("-inf")
    asked = float("inf")
    while True:
        wait = max(0.0, asked + MOMENT - time.monotonic()) if asked < float("inf") else None
        ready = select.select([pipe, woken], [], [], wait)[0]
        if woken in ready:
            if signal.SIGTERM in os.read(woken, 4096):
                signalled = time.monotonic()
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                _end_like(status)
        if pipe in ready:
            if not os.read(pipe, 1):
                os.killpg(0, signal.SIGKILL)
            asked = min(asked, time.monotonic())
        if not ready:
            if asked - signalled > TOGETHER:
                os.kill(child, signal.SIGTERM)
            asked = float("inf")


def _start(command: list[str]) -> int:
    guard = os.getpid()
    library = ctypes.CDLL(None)
    child = os.fork()
    if child:
        return child
    if sys.platform == "linux":
        library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
            file.write(MORE_LIKELY)
    if os.getppid() != guard:  # the guard died before the call of prctl
        os._exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127)


def _end_like(status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left a core dump already
    with contextlib.suppress(OSError):  # SIGKILL cannot have a handler
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
