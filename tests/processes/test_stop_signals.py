import os
import pty
import signal
import subprocess
import sys

import pytest

from trainrig.processes import stop_signals
from trainrig.processes.stop_signals import StopRequest


@pytest.mark.parametrize(
    ("signals", "after", "repeats"),
    [
        # `timeout` signals its command, and then the command's process group.
        ((signal.SIGTERM, signal.SIGTERM), 0.0, [False, True]),
        # systemd with SendSIGHUP, and a shell that passes on the kernel's signal.
        ((signal.SIGTERM, signal.SIGHUP), 0.0, [False, True]),
        ((signal.SIGHUP, signal.SIGHUP), 60.0, [False, True]),
        # A user asks a second time.
        ((signal.SIGTERM, signal.SIGTERM), 60.0, [False, False]),
        ((signal.SIGHUP, signal.SIGTERM), 60.0, [False, False]),
        ((signal.SIGINT, signal.SIGINT), 0.0, [False, False]),
    ],
)
def test_one_request_may_come_as_several_signals(signals, after, repeats, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(stop_signals.time, "monotonic", lambda: clock[0])
    request = StopRequest()
    found = []
    for number in signals:
        found.append(request.is_repeat(number))
        clock[0] += after
    assert found == repeats


WRITES_ON = """
import os, signal, sys, time
from trainrig import job
if sys.argv[1] == "ignored":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
with job.exit_codes():
    os.write(3, b"ready")
    while True:
        print("progress", file=sys.stderr)
        print("result")
        if sys.argv[1] == "ignored" and os.read(4, 1) == b"":
            print("more, to nobody")
            break
        time.sleep(0.01)
"""


@pytest.mark.parametrize(("how", "code"), [("heeded", 75), ("ignored", 0)])
def test_a_closed_terminal_asks_to_stop_unless_sighup_is_ignored(how, code):
    """Output to the closed terminal ends nothing and changes no exit code."""
    (ready, says_ready) = os.pipe()
    (hangs, says_hung) = os.pipe()
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.dup2(says_ready, 3, inheritable=True)
        os.dup2(hangs, 4, inheritable=True)
        os.closerange(5, 64)
        os.execv(sys.executable, [sys.executable, "-c", WRITES_ON, how])
    os.close(says_ready)
    os.close(hangs)
    assert os.read(ready, 5) == b"ready"
    os.close(terminal)
    os.close(says_hung)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code
    os.close(ready)


STOPPED_TWICE = """
import os, signal, sys, time
from trainrig import job
with job.exit_codes():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)
    finally:
        os.kill(os.getpid(), int(sys.argv[1]))
        print("cleaned up")
"""


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGHUP])
def test_a_repeated_signal_does_not_break_off_the_end_that_is_under_way(second):
    command = [sys.executable, "-c", STOPPED_TWICE, str(int(second))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (75, "cleaned up\n")
    line = "trainrig: stopped by SIGTERM; run the same command to start again\n"
    assert ended.stderr == line
