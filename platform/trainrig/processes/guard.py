"""Sits between a job supervisor and its child, so that no child outlives its supervisor.

Run as a script, in a new session: `guard.py PIPE COMMAND…`. It starts the command in its own
process group, and ends as that ends. A byte in the pipe asks the command to stop. When the pipe
closes, its other end has died, however it did: the whole group is killed, so that the next attempt
does not meet a driver of this one. When the guard dies the kernel kills the command.

It imports the least there is: it must start in no time, and be no prey for the kernel when memory
is short.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time

# Who sends SIGTERM to us sends it to the command as well, and once is enough: of two that mean the
TOGETHER = 2.0  # same, the request comes at most so many seconds after the signal,
MOMENT = 0.25  # or so many before it, which a request therefore waits.
PR_SET_PDEATHSIG = 1  # prctl(2)
MORE_LIKELY = "300"  # oom_score_adj: when memory is short the command goes before its supervisor


def main(pipe: int, command: list[str]) -> None:
    """Guard `command` until it ends, or nobody holds the other end of `pipe` any more."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    child = _start(command)
    told, asked = float("-inf"), float("inf")
    while True:
        wait = max(0.0, asked + MOMENT - time.monotonic()) if asked < float("inf") else None
        ready = select.select([pipe, woken], [], [], wait)[0]
        if woken in ready:
            if signal.SIGTERM in os.read(woken, 4096):
                told = time.monotonic()
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                _end_like(status)
        if pipe in ready:
            if not os.read(pipe, 1):
                os.killpg(0, signal.SIGKILL)
            asked = min(asked, time.monotonic())
        if not ready:
            if asked - told > TOGETHER:
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
    if os.getppid() != guard:  # it died before the kernel knew what to do then
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
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left one already
    with contextlib.suppress(OSError):  # SIGKILL takes no handler
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
