"""Records that identify a process, so that no other process gets a signal."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from trainrig.processes.process_identity import Process, descends_from, find_children, read_end

OTHER = 61234  # another user than this one
LONG = 30.0  # s: a bound for broken code


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """Yield a sleeping process of this user."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_process_that_is_named_is_killed_and_is_gone_then(
    sleeper: "subprocess.Popen[bytes]",
) -> None:
    named = Process.of(sleeper.pid)
    assert not named.gone()
    named.kill()
    assert sleeper.wait(LONG) == -signal.SIGKILL
    assert named.gone()
    named.kill()  # too late, and without effect


@pytest.mark.parametrize(
    "other", [{"process_began": "1"}, {"user": OTHER}, {"host": "elsewhere"}, {"boot": "before"}]
)
def test_another_process_with_the_number_gets_no_signal(
    sleeper: "subprocess.Popen[bytes]", other: dict[str, object]
) -> None:
    Process.of(sleeper.pid).model_copy(update=other).kill()
    assert sleeper.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_record_of_another_users_process_leads_to_no_signal() -> None:
    command = ["sh", "-c", "echo; exec sleep 600"]
    theirs = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=lambda: os.setuid(OTHER))
    assert theirs.stdout and theirs.stdout.readline()
    named = Process.of(theirs.pid)
    assert named.user == OTHER
    named.kill()
    named.model_copy(update={"user": os.getuid()}).kill()
    assert theirs.poll() is None
    theirs.kill()
    theirs.communicate()


def test_a_child_descends_from_this_process_and_this_one_from_no_child(
    sleeper: "subprocess.Popen[bytes]",
) -> None:
    assert descends_from(sleeper.pid, os.getpid())
    assert descends_from(sleeper.pid, os.getppid())
    assert not descends_from(os.getpid(), sleeper.pid)
    assert not descends_from(os.getppid(), os.getpid())


def test_a_child_is_found_by_its_command_and_its_end_is_described(
    sleeper: "subprocess.Popen[bytes]",
) -> None:
    assert find_children({"sleep"}) == {"sleep": sleeper.pid}
    assert read_end(sleeper.pid) is None
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert read_end(sleeper.pid) == "was killed by SIGKILL"
    assert sleeper.wait(LONG) == -signal.SIGKILL  # its status is still there to be read
    assert read_end(sleeper.pid) == "has ended"
    with subprocess.Popen(["sh", "-c", "exit 3"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert read_end(child.pid) == "ended with 3"
