import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import astuple
from pathlib import Path

import psutil
import pytest
from support.processes import has_ended
from support.waiting import wait_until

from trainrig.processes import fork_server, forking
from trainrig.processes.fork_server import ForkedProcess, ForkServer, ProcessDied, ServerAddress
from trainrig.train.elastic import worker_agent

HERE = str(Path(__file__).parent)
IDLE = 3  # sockets of an idle server
LONG = 30.0  # s: a bound for broken code
# A script that prints what the server at an address answers to another user.
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

# A script that fills the queue of the server at an address as another user, and stays.
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


def test_a_forked_process_has_the_clients_environment_and_the_imports(
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
    assert [process.receive() for process in several] == [0, 1, 2]
    os.kill(several[1].pid, signal.SIGKILL)
    with pytest.raises(ProcessDied, match=r"^killed by SIGKILL$"):
        several[1].receive()
    several[0].close()
    assert has_ended(several[0].pid)
    assert psutil.pid_exists(several[2].pid)
    several[2].close()
    assert has_ended(several[2].pid)


@pytest.fixture
def little_memory():
    """Return the folder of a control group of 64 MiB, where the kernel allows one."""
    for folder, limit in (("memory/", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path(f"/sys/fs/cgroup/{folder}trainrig-{os.getpid()}")
        with contextlib.suppress(OSError):
            group.mkdir()
            (group / limit).write_text(str(64 * 2**20))
            yield group
            group.rmdir()
            return
    pytest.skip("no control group of memory may be made here")


def test_a_process_killed_for_memory_is_reported_so(server, little_memory):
    before = server.ran_out_of_memory()
    forked = ForkedProcess(server.get_address(), "forked:take", "here")
    assert forked.receive() == "here"
    (little_memory / "cgroup.procs").write_text(str(forked.pid))
    forked.send("now")
    with pytest.raises(ProcessDied, match="kernel, as memory ran"):
        forked.receive()
    assert (before, server.ran_out_of_memory(), server.ran_out_of_memory()) == (False, True, False)


@pytest.mark.parametrize("stopped", [False, True])
def test_another_thread_can_end_a_process_that_is_waited_for(server, stopped):
    forked = ForkedProcess(server.get_address(), "forked:stay", "here")
    assert forked.receive() == "here"
    if stopped:
        os.kill(forked.pid, signal.SIGSTOP)
    asking = threading.Timer(0.05, forked.ask_to_end)
    asking.start()
    with pytest.raises(ProcessDied, match=r"^killed by SIGKILL$"):
        forked.receive()
    asking.join()
    forked.ask_to_end()  # too late, and without effect


def test_an_end_is_over_when_the_process_is_no_more(server):
    forked = ForkedProcess(server.get_address(), "forked:stay", "here")
    os.kill(forked.pid, signal.SIGSTOP)
    forked.end()
    assert not psutil.pid_exists(forked.pid)


def test_an_exception_is_logged_and_ends_the_process(server, capfd):
    with pytest.raises(ProcessDied, match=r"^ended with 1$"):
        ForkedProcess(server.get_address(), "forked:fail", "the reason").receive()
    assert "RuntimeError: the reason" in capfd.readouterr().err


@pytest.mark.parametrize("stopped", [False, True])
def test_a_forked_process_does_not_outlive_its_client_even_if_stopped(server, tmp_path, stopped):
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
    assert has_ended(pid)
    asker.wait()


def test_a_dead_server_is_seen_and_another_started(server):
    forked = ForkedProcess(server.get_address(), "forked:stay", "here")
    assert forked.receive() == "here"
    before = server.get_address()
    server._server.kill()
    with pytest.raises(ProcessDied, match="server or its machine has ended"):
        forked.receive()
    assert has_ended(forked.pid)
    server._server.wait()
    with pytest.raises(ProcessDied, match="fork server cannot"):
        ForkedProcess(before, "forked:stay", "here")
    assert server.get_address() != before
    again = ForkedProcess(server.get_address(), "forked:stay", "again")
    assert again.receive() == "again"
    again.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="there, only who asked ends them")
@pytest.mark.parametrize("stopped", [False, True])
def test_forked_processes_end_with_a_killed_server_without_polling(server, stopped):
    forked = ForkedProcess(server.get_address(), "forked:stay", "here")
    assert forked.receive() == "here"
    if stopped:
        os.kill(forked.pid, signal.SIGSTOP)
    server._server.kill()
    assert has_ended(forked.pid)
    forked.close()
    server.get_address()  # start another: the fixture ends a live one


def test_a_server_whose_imports_fail_reports_the_cause_to_clients():
    broken = ForkServer("there.is.none")
    with pytest.raises(ProcessDied, match=r"reached: its imports failed: ModuleNotFoundError"):
        ForkedProcess(broken._address, "forked:stay", "here")
    assert broken._server.wait(LONG) == 0
    with pytest.raises(ProcessDied, match="fork server cannot"):
        ForkedProcess(broken._address, "forked:stay", "here")


def connect(address, words=b"", descriptors=()):
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


@pytest.mark.slow  # silent clients are given time
@pytest.mark.parametrize(("words", "descriptors"), STRANGERS.values(), ids=STRANGERS)
def test_a_hundred_strangers_delay_no_client_and_are_disconnected(server, words, descriptors):
    # The server is ready by now.
    forked = ForkedProcess(server.get_address(), "forked:stay", "here")
    forked.end()
    seen = psutil.Process(server._server.pid)
    wait_until(lambda: len(seen.net_connections("unix")) == IDLE)
    with contextlib.ExitStack() as held:
        strangers = [
            held.enter_context(connect(server.get_address(), words, descriptors))
            for _ in range(100)
        ]
        forked = ForkedProcess(server.get_address(), "forked:stay", "here")
        assert forked.receive() == "here"
        # This includes those that send nothing.
        assert {b""} == {read_to_end(stranger) for stranger in strangers}
        forked.end()
    wait_until(lambda: len(seen.net_connections("unix")) == IDLE)


def read_to_end(stranger):
    # The server closed without reading all of the message.
    with contextlib.suppress(ConnectionResetError):
        return stranger.recv(9)
    return b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_users_queued_connections_block_no_client(monkeypatch):
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
    token = server.get_address().token
    seen = psutil.Process(server._server.pid)
    assert len(token) == forking.TOKEN_BYTES
    assert token not in " ".join(seen.cmdline()) + str(seen.environ()) + str(server.get_address())


@pytest.fixture
def in_folders(monkeypatch):
    """Use addresses in folders, as on systems without abstract ones."""
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


def test_the_next_server_removes_files_of_killed_servers(in_folders, server, monkeypatch):
    killed = ForkServer("wave")
    killed._server.kill()
    killed._server.wait()
    assert Path(killed._address.socket).exists()
    another = ForkServer("wave")
    assert not Path(killed._address.socket).parent.exists()
    assert Path(server._address.socket).exists()
    another._server.stdin.close()
    another._server.wait()


def test_a_removed_address_is_created_again(in_folders, server):
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
    assert has_ended(forked.pid) and has_ended(int(server))
    owner.communicate()
    forked.close()


def test_a_forked_process_has_the_clients_module_path(server, monkeypatch, tmp_path):
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
