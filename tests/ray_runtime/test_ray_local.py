"""A process's local Ray: how its loss is found, and its files and processes afterwards."""

import json
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import has_ended

from trainrig.errors import ClusterError
from trainrig.ray_runtime import ray_local, session_folder

pytestmark = [pytest.mark.ray, pytest.mark.slow]
LONG = 120.0  # s: a bound for broken code

START = """
import json, os, signal, sys, time
from trainrig.ray_runtime import ray_local, ray_session

def begun():
    import ray
    from ray._private import worker
    ray_session.join()
    actor = ray.remote(type("Actor", (), {"pid": lambda self: os.getpid()}))
    started = actor.options(num_cpus=0).remote()
    daemons = worker._global_node.all_processes
    return started, {
        "actor": ray.get(started.pid.remote()),
        "daemons": {name: handles[0].process.pid for name, handles in daemons.items()},
        "session": worker._global_node.get_session_dir_path(),
    }

def say(what):
    print(json.dumps(what), flush=True)
"""
KILLED = "actor, found = begun(); say(found); time.sleep(600)"
HAS_NO_OWNER_YET = """
def begun_but_not_owned(folder, addresses):
    from ray._private import worker
    node = worker._global_node
    daemons = {name: handles[0].process.pid for name, handles in node.all_processes.items()}
    say({"daemons": daemons, "session": node.get_session_dir_path()})
    time.sleep(600)

ray_local.Session.read_current = begun_but_not_owned
ray_session.join()
"""
LOSES = """
for daemon in sys.argv[1:]:
    actor, found = begun()
    say(found)
    os.kill(found["daemons"][daemon], signal.SIGKILL)
    try:
        ray_local.call_while_ray_lives(time.sleep, 600)
    except ray_local.ClusterLost as lost:
        say(str(lost))
    assert ray_local.end_own()
another, found = begun()
say(found)
"""

# Holds objects of Ray until its end, which takes long on a busy machine.
ENDS_SLOWLY = """
def end_slowly(session, *arguments, ended=ray_local.Session.end):
    ended(session, *arguments)
    time.sleep(5)

actor, found = begun()
import ray
held = [ray.put(bytes(n)) for n in (1, 10**6)]
ray_local.Session.end = end_slowly
say(found)
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Yield a folder whose name is short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="trl-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def start(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Yield `start(text, …)`: start a process with its own Ray in the temporary folder."""
    for name in ("TMPDIR", "RAY_TMPDIR"):
        monkeypatch.setenv(name, str(temporary))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    started: list[subprocess.Popen[str]] = []

    def begin(text: str, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", START + text, *arguments]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def read_line(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout and process.stderr
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return json.loads(line)


def test_a_lost_ray_is_reported_and_ended_and_the_next_leaves_nothing(
    start: Callable[..., Any], temporary: Path
) -> None:
    """Before that, two others were killed, one of them during its start."""
    killed = [start(KILLED), start(HAS_NO_OWNER_YET)]
    first, starting = map(read_line, killed)
    assert Path(starting["session"]).exists()
    # Ray makes its folders readable for every user of the machine.
    private = list(temporary.iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o700}
    assert all(Path(started["session"]).parents[1] in private for started in (first, starting))
    for process in killed:
        process.kill()
        process.wait(LONG)
    called = {"raylet": "raylet", "gcs_server": "GCS"}
    process = start(LOSES, *called)
    begun = [first]
    for daemon, name in called.items():
        lost = read_line(process)
        # The next Ray has removed them.
        assert not Path(first["session"]).exists() and not Path(starting["session"]).exists()
        assert all(has_ended(pid) for pid in starting["daemons"].values())
        pid = lost["daemons"][daemon]
        problem = f"the {name} of this machine's Ray (process {pid}) was killed by SIGKILL"
        assert read_line(process) == problem
        begun.append(lost)
    begun.append(read_line(process))
    assert len({starting["session"], *(started["session"] for started in begun)}) == 5
    assert process.wait(LONG) == 0
    assert all(has_ended(started["actor"]) for started in begun)
    assert list(temporary.iterdir()) == []


def test_a_ray_that_fails_to_start_is_a_one_line_error_and_leaves_only_its_logs(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(temporary))
    daemons = list[subprocess.Popen[bytes]]()

    def start_in_vain(folder: Path) -> None:
        logs = folder / session_folder.RAY / "session_1/logs"
        logs.mkdir(parents=True)
        (logs.parent / "sockets").mkdir()
        (folder / session_folder.RAY / "session_latest").symlink_to(logs.parent)
        with (logs / "raylet.out").open("w") as log:
            daemons.append(subprocess.Popen(["sleep", "600"], stdout=log))
        raise Exception("The current node timed out\nduring startup.")  # the error that Ray raises

    with (
        pytest.raises(ClusterError, match=r"no Ray could.*timed out during startup") as caught,
        ray_local.whole_or_nothing() as folder,
    ):
        start_in_vain(folder)
    assert daemons[0].wait(LONG) == -signal.SIGKILL
    logs = folder / session_folder.RAY / "session_1/logs"
    assert str(caught.value).endswith(f" (Ray logs: {logs})")
    assert [path for path in temporary.rglob("*") if not path.is_dir()] == [logs / "raylet.out"]
    assert list(logs.parent.iterdir()) == [logs]


def test_a_process_that_holds_objects_of_its_ray_ends_well(
    start: Callable[..., Any], temporary: Path
) -> None:
    process = start(ENDS_SLOWLY)
    found = read_line(process)
    assert process.wait(LONG) == 0
    assert has_ended(found["actor"])
    assert all(has_ended(pid) for pid in found["daemons"].values())
    assert list(temporary.iterdir()) == []


def test_a_connection_is_found_by_the_folder_of_its_socket(temporary: Path) -> None:
    path = temporary / "sockets" / "raylet"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(path))
        server.listen(1)
        assert not ray_local.is_connected(temporary)
        client.connect(str(path))
        files = sorted(Path("/dev/fd").iterdir())
        assert ray_local.is_connected(temporary)
        assert not ray_local.is_connected(temporary / "other")
        assert sorted(Path("/dev/fd").iterdir()) == files  # nothing stays open
    assert not ray_local.is_connected(temporary)
