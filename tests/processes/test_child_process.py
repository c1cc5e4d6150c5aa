"""Child processes and their guards, with real processes and real signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.waiting import wait_until

from trainrig.processes.child_process import Child

PATIENCE = 60.0  # s: a bound for broken code
# A process that reports itself, lives until asked to end, and ends cleanly on SIGTERM.
PATIENT = """
import os, signal, sys, time
def whole(*_):
    print("whole", flush=True); sys.exit(75)
signal.signal(signal.SIGTERM, whole)
print(os.getpid(), flush=True)
while True: time.sleep(0.05)
"""
DEAF = PATIENT.replace("sys.exit(75)", "None")
WITH_CHILD = """
import subprocess, sys
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)"])
print(grandchild.pid, flush=True)
"""


class Heard:
    """A child that runs Python, and its whole output."""

    def __init__(self, code, *arguments):
        self.said = b""
        self.child = Child([sys.executable, "-c", code, *arguments], dict(os.environ), self.hear)

    def hear(self, piece):
        time.sleep(0.01)  # simulated delay of storage
        self.said += piece

    def first_line(self):
        wait_until(lambda: b"\n" in self.said)
        return self.said.split()[0]

    def end(self):
        wait_until(lambda: self.child.poll_group() is not None)
        return self.child.poll_group()


def has_ended(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def start():
    started = []

    def begin(code, *arguments):
        started.append(Heard(code, *arguments))
        return started[-1]

    yield begin
    for child in started:
        if child.child.poll_group() is None:
            child.child.kill()
            child.end()


@pytest.mark.parametrize("code", [0, 1, 2, 75, 130])
def test_the_exit_code_is_the_commands_and_all_output_was_read(start, code):
    heard = start(f"import sys; print('o' * 300_000); sys.exit({code})")
    assert heard.end() == code
    assert heard.said == b"o" * 300_000 + b"\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_signal_that_ended_the_command_is_passed_on(start, number):
    assert start(f"import os; os.kill(os.getpid(), {number:d})").end() == -number


def test_a_command_that_is_not_there_says_so():
    said = []
    child = Child(["/no/such/python"], {}, said.append)
    wait_until(lambda: child.poll_group() is not None)
    assert child.poll_group() == 127 and b"/no/such/python: No such file" in b"".join(said)


def test_when_asked_it_ends_whole(start):
    heard = start(PATIENT)
    heard.first_line()
    heard.child.ask()
    assert heard.end() == 75 and heard.said.endswith(b"whole\n")


def test_a_signal_to_all_processes_at_once_is_not_passed_on_once_more(start):
    """Ray signals all processes when it stops a job.

    A second SIGTERM would end the process that saves a checkpoint after the first.
    """
    counting = """
import signal, time
count = 0
def note(*_):
    global count
    count += 1
signal.signal(signal.SIGTERM, note)
print("ready", flush=True)
while not count: time.sleep(0.01)
time.sleep(1)
print(f"{count} times", flush=True)
"""
    heard = start(counting)
    heard.first_line()
    guard = psutil.Process(heard.child.pid)
    (command,) = guard.children()
    guard.suspend()  # the guard then finds everything at once, however busy the machine is
    heard.child.ask()
    command.terminate()
    guard.terminate()
    guard.resume()
    assert heard.end() == 0 and heard.said.endswith(b"1 times\n")


def test_a_process_that_ignores_sigterm_is_killed_with_its_descendants(start):
    heard = start(WITH_CHILD + DEAF)
    grandchild = int(heard.first_line())
    heard.child.ask()
    heard.child.kill()
    assert heard.end() == -signal.SIGKILL
    wait_until(lambda: has_ended(grandchild))


def test_processes_that_a_command_leaves_behind_end_with_it(start):
    heard = start(WITH_CHILD)
    assert heard.end() == 0
    wait_until(lambda: has_ended(int(heard.first_line())))


def test_the_command_dies_with_its_guard(start):
    heard = start(DEAF)
    command = int(heard.first_line())
    psutil.Process(heard.child.pid).kill()
    wait_until(lambda: has_ended(command))  # before anything looks at it
    assert heard.end() == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_whole_group_dies_with_who_started_it(tmp_path, number):
    script = tmp_path / "starts.py"
    script.write_text(
        "import sys, time\nfrom trainrig.processes.child_process import Child\n"
        "say = lambda piece: (sys.stdout.buffer.write(piece), sys.stdout.flush())\n"
        f"child = Child([sys.executable, '-c', {WITH_CHILD + DEAF!r}], dict(), say)\n"
        "time.sleep(999)\n"
    )
    starter = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    grandchild = int(starter.stdout.readline())
    command = int(starter.stdout.readline())
    starter.send_signal(number)
    starter.communicate()
    wait_until(lambda: has_ended(command) and has_ended(grandchild))


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="Linux alone has it")
def test_when_memory_is_short_the_command_goes_first(start):
    heard = start("print(open('/proc/self/oom_score_adj').read())")
    assert heard.end() == 0
    assert int(heard.said) > int(Path("/proc/self/oom_score_adj").read_text())
