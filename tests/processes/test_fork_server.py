import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import astuple
from pathlib import Path

import psutil
import pytest

from trainrig.processes import fork_server, forking
from trainrig.processes.fork_server import (
    ForkedProcess,
    ForkServer,
    ProcessDied,
    ServerAddress,
)
from trainrig.train.elastic import worker_agent

HERE = str(Path(__file__).parent)
IDLE = 3  # sockets of a server that nobody has connected to
LONG = 30.0  # s: a bound for what is broken
# Prints what the server at an address answers to another user.
ASK_AS_ANOTHER = """
import contextlib, os, socket, sys

os.setuid(65534)
told = b""
with socket.socket(socket.AF_UNIX) as client:
    client.connect("\\0" + sys.argv[1])
    with contextlib.suppress(OSError):  # it hangs up
        socket.send_fds(client, [sys.argv[2].encode()], [0, 1, 2])
        told = client.recv(9)  # the number of a process, if one was forked
print(told)
"""

# Fills the queue of the server at an address as another user, and stays.
FILL_AS_ANOTHER = """
import os, socket, sys, time

os.setuid(65534)
held = []
while True:
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    try:
        client.connect("\\0" + sys.argv[1])
    except BlockingIOError:
        break
    held.append(client)
print("full", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


@pytest.fixture
def server():
    made = ForkServer("wave")
    yield made
    made._server.stdin.close()
    assert made._server.wait(LONG) == 0
    assert not Path(made._address.socket).exists()


def gone(pid):
    """Whether the process ends, soon."""
    try:
        psutil.Process(pid).wait(LONG)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def test_a_forked_process_has_all_of_whoever_asked_and_what_was_imported(
    server, monkeypatch, tmp_path, capfd
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOLD", "yes")
    forked = ForkedProcess(server.get_address(), "forked:tell", {"first": 1})
    seen, first = forked.receive()
    assert seen == {
        "pid": forked.pid,
        "parent": server._server.pid,
        "folder": str(tmp_path),
        "variable": "yes",
        "imported": True,
        "input": "",
    }
    assert first == {"first": 1}
    forked.send("more")
    assert forked.receive() == "more"
    with pytest.raises(ProcessDied, match=r"^ended with 0$"):
        forked.receive()
    assert capfd.readouterr().out == "to the output of whoever asked\n"


def test_several_live_side_by_side_and_each_ends_by_itself(server):
    several = [ForkedProcess(server.get_address(), "forked:stay", number) for number in range(3)]
    assert [each.receive() for each in several] == [0, 1, 2]
    os.kill(several[1].pid, signal.SIGKILL)
    with pytest.raises(ProcessDied, match=r"^killed by SIGKILL$"):
        several[1].receive()
    several[0].close()
    assert gone(several[0].pid)
    assert psutil.pid_exists(several[2].pid)
    several[2].close()
    assert gone(several[2].pid)


@pytest.fixture
def little_memory():
    """A control group of 64 MiB, where the kernel lets this process make one; its folder."""
    for folder, limit in (("memory/", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path(f"/sys/fs/cgroup/{folder}trainrig-{os.getpid()}")
        with contextlib.suppress(OSError):
            group.mkdir()
            (group / limit).write_text(str(64 * 2**20))
            yield group
            group.rmdir()
            return
    pytest.skip("no control group of memory may be made here")


def test_one_that_the_kernel_ended_for_want_of_memory_is_told_as_that(server, little_memory):
    before = server.ran_out_of_memory()
    forked = ForkedProcess(server.get_address(), "forked:take", "here")
    assert forked.receive() == "here"
    (little_memory / "cgroup.procs").write_text(str(forked.pid))
    forked.send("now")
    with pytest.raises(ProcessDied, match=r"^killed by the kernel, as memory ran out$"):
        forked.receive()
    assert (before, server.ran_out_of_memory(), server.ran_out_of_memory()) == (False, True, False)


@pytest.mark.parametrize("stopped", [False, True])
def test_one_that_is_waited_for_is_ended_from_another_thread(server, stopped):
    forked = ForkedProcess(server.get_address(), "forked:stay", "here")
    assert forked.receive() == "here"
    if stopped:
        os.kill(forked.pid, signal.SIGSTOP)
    asking = threading.Timer(0.05, forked.ask_to_end)
    asking.start()
    with pytest.raises(ProcessDied, match=r"^killed by SIGKILL$"):
        forked.receive()
    asking.join()
    forked.ask_to_end()  # too late, and no matter


def test_an_end_is_over_when_the_process_is_no_more(server):
    forked = ForkedProcess(server.get_address(), "forked:stay", "here")
    os.kill(forked.pid, signal.SIGSTOP)
    forked.end()
    assert not psutil.pid_exists(forked.pid)


def test_what_it_raises_is_in_its_log_and_it_has_died(server, capfd):
    with pytest.raises(ProcessDied, match=r"^ended with 1$"):
        ForkedProcess(server.get_address(), "forked:fail", "the reason").receive()
    assert "RuntimeError: the reason" in capfd.readouterr().err


@pytest.mark.parametrize("stopped", [False, True])
def test_it_does_not_outlive_whoever_asked_even_when_it_stands_still(server, tmp_path, stopped):
    path = tmp_path / "pid"
    asker = subprocess.Popen(
        [sys.executable, str(Path(HERE, "forked.py")), *astuple(server.get_address()), str(path)]
    )
    while not path.exists() or not path.read_text():
        assert asker.poll() is None
    pid = int(path.read_text())
    if stopped:
        os.kill(pid, signal.SIGSTOP)
    asker.kill()
    assert gone(pid)
    asker.wait()


def test_a_dead_server_is_seen_and_another_started(server):
    forked = ForkedProcess(server.get_address(), "forked:stay", "here")
    assert forked.receive() == "here"
    before = server.get_address()
    server._server.kill()
    with pytest.raises(ProcessDied, match=r"^its fork server or its machine has ended$"):
        forked.receive()
    assert gone(forked.pid)
    server._server.wait()
    with pytest.raises(ProcessDied, match=r"^its fork server cannot be reached: "):
        ForkedProcess(before, "forked:stay", "here")
    assert server.get_address() != before
    again = ForkedProcess(server.get_address(), "forked:stay", "again")
    assert again.receive() == "again"
    again.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="there, only who asked ends them")
@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_forked_outlives_a_server_that_was_killed_though_nobody_looks(server, stopped):
    forked = ForkedProcess(server.get_address(), "forked:stay", "here")
    assert forked.receive() == "here"
    if stopped:
        os.kill(forked.pid, signal.SIGSTOP)
    server._server.kill()
    assert gone(forked.pid)
    forked.close()
    server.get_address()  # another: the fixture ends one that lives


def test_a_server_whose_imports_fail_says_why_to_whoever_asks():
    broken = ForkServer("there.is.none")
    with pytest.raises(ProcessDied, match=r"reached: its imports failed: ModuleNotFoundError"):
        ForkedProcess(broken._address, "forked:stay", "here")
    assert broken._server.wait(LONG) == 0
    with pytest.raises(ProcessDied, match=r"^its fork server cannot be reached: "):
        ForkedProcess(broken._address, "forked:stay", "here")


def knock(address, words=b"", descriptors=()):
    """Connect to the server at `address`, and send `words` with `descriptors`."""
    stranger = socket.socket(socket.AF_UNIX)
    stranger.settimeout(LONG)
    stranger.connect(fork_server._to_socket_name(address.socket))
    if words:
        socket.send_fds(stranger, [words], descriptors)
    return stranger


STRANGERS = {
    "silent": (b"", ()),
    "garbage": (b"GET / HTTP/1.1\r\n\r\n", ()),
    "a token of another run": (b"0" * forking.TOKEN_BYTES, (0, 1, 2)),
    "descriptors": (b"\0", (0, 1, 2)),
}


@pytest.mark.slow  # the silent are given time
@pytest.mark.parametrize(("words", "descriptors"), STRANGERS.values(), ids=STRANGERS)
def test_a_hundred_strangers_stall_nobody_and_are_hung_up_on(server, words, descriptors):
    forked = ForkedProcess(server.get_address(), "forked:stay", "here")  # it serves by now
    forked.end()
    seen = psutil.Process(server._server.pid)
    wait_until(lambda: len(seen.net_connections("unix")) == IDLE)
    with contextlib.ExitStack() as held:
        strangers = [
            held.enter_context(knock(server.get_address(), words, descriptors)) for _ in range(100)
        ]
        forked = ForkedProcess(server.get_address(), "forked:stay", "here")
        assert forked.receive() == "here"
        # All of them, also those that say nothing.
        assert {b""} == {hear_the_end(stranger) for stranger in strangers}
        forked.end()
    wait_until(lambda: len(seen.net_connections("unix")) == IDLE)


def wait_until(holds):
    until = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def hear_the_end(stranger):
    with contextlib.suppress(ConnectionResetError):  # what it said was not read to its end
        return stranger.recv(9)
    return b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_users_connections_in_the_queue_keep_nobody_out(monkeypatch):
    monkeypatch.setattr(fork_server, "BACKLOG", 2)
    slow = ForkServer("slow_to_import")
    name = slow._address.socket
    asked = subprocess.Popen(
        [sys.executable, "-c", FILL_AS_ANOTHER, name[1:]], stdout=subprocess.PIPE
    )
    assert asked.stdout.readline() == b"full\n"
    forked = ForkedProcess(slow._address, "forked:stay", "here")
    assert forked.receive() == "here"
    forked.end()
    asked.kill()
    asked.communicate()
    slow._server.stdin.close()
    slow._server.wait(LONG)


def test_the_token_stands_in_no_command_line_and_no_environment(server):
    token, seen = server.get_address().token, psutil.Process(server._server.pid)
    assert len(token) == forking.TOKEN_BYTES
    assert token not in " ".join(seen.cmdline()) + str(seen.environ()) + str(server.get_address())


@pytest.fixture
def in_folders(monkeypatch):
    """Addresses as on systems that have no others."""
    monkeypatch.setattr(fork_server, "ABSTRACT", False)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the next server removes it")
def test_a_server_that_is_killed_leaves_no_file_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = ForkServer("wave")
    killed._server.kill()
    killed._server.wait()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_is_not_forked_for(server):
    address = server.get_address()
    command = [sys.executable, "-c", ASK_AS_ANOTHER, address.socket[1:], address.token]
    asked = subprocess.run(command, capture_output=True, text=True)
    assert (asked.stdout, asked.stderr) == ("b''\n", "")


def test_what_killed_servers_have_left_the_next_one_removes(in_folders, server, monkeypatch):
    killed = ForkServer("wave")
    killed._server.kill()
    killed._server.wait()
    assert Path(killed._address.socket).exists()
    another = ForkServer("wave")
    assert not Path(killed._address.socket).parent.exists()
    assert Path(server._address.socket).exists()
    another._server.stdin.close()
    another._server.wait()


def test_an_address_that_was_removed_is_made_anew(in_folders, server):
    before = server.get_address()
    Path(before.socket).unlink()
    assert server.get_address() != before
    forked = ForkedProcess(server.get_address(), "forked:stay", "here")
    assert forked.receive() == "here"
    forked.close()


def test_all_end_with_the_servers_owner():
    text = (
        "import sys; from trainrig.processes.fork_server import *\n"
        "server = ForkServer(); address = server.get_address()\n"
        "print(address.socket, address.token, server._server.pid, flush=True)\n"
        "sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    name, token, server = owner.stdout.readline().decode().split()
    forked = ForkedProcess(ServerAddress(name, token), "forked:stay", "here")
    assert forked.receive() == "here"
    owner.kill()
    assert gone(forked.pid) and gone(int(server))
    owner.communicate()
    forked.close()


def test_it_finds_modules_where_whoever_asked_does(server, monkeypatch, tmp_path):
    (tmp_path / "later.py").write_text("def add(channel): channel.send(channel.recv() + 1)")
    monkeypatch.syspath_prepend(tmp_path)
    assert ForkedProcess(server.get_address(), "later:add", 1).receive() == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (worker_agent.MODULES, ["ray"]),
        (
            ["trainrig.train.elastic.worker_agent", "trainrig.train.elastic.train_controller"],
            ["torch"],
        ),
    ],
)
def test_ranks_know_no_ray_and_rays_processes_import_no_torch(modules, absent):
    text = f"import sys, {', '.join(modules)}; print(*{absent} & sys.modules.keys())"
    text = text.replace(str(absent), str(set(absent)))
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == []
