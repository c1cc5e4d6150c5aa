"""Process groups: real processes, and which of them outlive the leader."""

import subprocess
import sys

import psutil
import pytest

from trainrig.processes.child_process import end_process, hold_group

# A leader whose child outlives it; it prints the child's pid.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)"])
print(child.pid, flush=True)
"""


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("ends_before", [True, False])
def test_nothing_of_a_group_outlives_its_block(ends_before):
    code = PARENT if ends_before else f"{PARENT}\nchild.wait()"
    with hold_group([sys.executable, "-c", code], stdout=subprocess.PIPE) as leader:
        child = int(leader.stdout.readline())
        if ends_before:
            assert leader.wait() == 0
        assert not is_gone(child)
    psutil.wait_procs([psutil.Process(child)] if psutil.pid_exists(child) else [], timeout=60)
    assert is_gone(child) and leader.stdout.closed
    assert leader.returncode == (0 if ends_before else -9)


def test_a_block_that_raises_ends_its_group_too():
    with pytest.raises(KeyError), hold_group([sys.executable, "-c", "input()"]) as leader:
        raise KeyError
    assert leader.returncode is not None


def test_pipes_with_unread_and_unwritten_bytes_are_closed():
    code = "print('x' * 1000, flush=True); import time; time.sleep(999)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", code], **pipes)
    process.stdout.read(1)
    process.stdin.write(b"y")  # buffered: closing writes it to a process that has ended
    end_process(process)
    assert process.returncode == -9 and process.stdin.closed and process.stdout.closed
