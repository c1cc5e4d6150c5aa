import json
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainrig.quickstart.injected_faults import KILLED, kill_one_worker
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

pytestmark = pytest.mark.chaos

WORKER = """
import sys
from trainrig.train.run.run_folder import RunFolder
folder, attempt, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
RunFolder(folder).record("worker_started", attempt=attempt, rank=rank)
print("ready", flush=True)
sys.stdin.read()  # until it is told to end
"""
PATIENCE = 60  # s, after which a test fails

Start = Callable[[int, int], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return the function `start(2, 0)`: start a process recorded as rank 0 of attempt 2."""
    started = []

    def one(attempt: int, rank: int) -> "subprocess.Popen[bytes]":
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), str(attempt), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(worker)
        assert worker.stdout and worker.stdout.readline() == b"ready\n"
        return worker

    yield one
    for worker in started:
        worker.kill()
        worker.communicate()


@pytest.fixture
def look_twice(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that waits until the metrics were read twice from then on.

    One full reading has ended then.
    """
    looks: queue.Queue[None] = queue.Queue()
    read_lines = metrics.read_lines

    def seen(folder: str) -> Iterator[dict[str, object]]:
        looks.put(None)
        return read_lines(folder)

    monkeypatch.setattr(metrics, "read_lines", seen)

    def wait() -> None:
        while not looks.empty():
            looks.get()
        for _ in range(3):  # the first reading may have begun before
            looks.get(timeout=PATIENCE)

    return wait


def write_steps(folder: Path, attempt: int, *steps: int) -> None:
    with (folder / metrics.METRICS).open("a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "attempt": attempt, "train/loss": 1.0}) + "\n")


def list_kills(folder: Path) -> list[dict[str, object]]:
    return [event for event in RunFolder(str(folder)).read_events() if event["event"] == KILLED]


def test_the_last_rank_is_killed_once_the_step_is_done(
    tmp_path: Path, start: Start, look_twice: Callable[[], None]
) -> None:
    # The rank that started last: neither the lowest pid nor the first or last of the record.
    zero = start(1, 0)
    two = start(1, 2)
    one = start(1, 1)
    with kill_one_worker(str(tmp_path), after_step=5):
        write_steps(tmp_path, 1, 1, 2, 3, 4)
        look_twice()
        assert two.poll() is None
        write_steps(tmp_path, 1, 5)
        assert two.wait(PATIENCE) == -signal.SIGKILL
    assert (zero.poll(), one.poll()) == (None, None)
    (kill,) = list_kills(tmp_path)
    assert {name: kill[name] for name in ("attempt", "step", "rank", "target")} == {
        "attempt": 1,
        "step": 5,
        "rank": 2,
        "target": two.pid,
    }


def test_nobody_is_killed_before_the_step_is_reached(
    tmp_path: Path, start: Start, look_twice: Callable[[], None]
) -> None:
    worker = start(1, 0)
    with kill_one_worker(str(tmp_path), after_step=5):
        look_twice()  # there are no metrics yet
        write_steps(tmp_path, 1, 3, 4)
        look_twice()
    assert worker.poll() is None
    assert list_kills(tmp_path) == []


def test_nobody_is_killed_a_second_time(tmp_path: Path, start: Start) -> None:
    first = start(1, 0)
    with kill_one_worker(str(tmp_path), after_step=5):
        write_steps(tmp_path, 1, 5)
        assert first.wait(PATIENCE) == -signal.SIGKILL
        second = start(2, 0)
        write_steps(tmp_path, 2, 5, 6)
    with kill_one_worker(str(tmp_path), after_step=5) as _:
        write_steps(tmp_path, 2, 7, 8)
        wait_for_killers()
    assert second.poll() is None
    assert len(list_kills(tmp_path)) == 1


def wait_for_killers() -> None:
    """Wait for the threads that this module's tests made the library start."""
    import threading

    for thread in threading.enumerate():
        if "(_kill)" in thread.name:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_a_run_that_takes_no_step_is_left_in_peace(
    tmp_path: Path, start: Start, look_twice: Callable[[], None]
) -> None:
    # Pretend that a worker's pid was reused by another process.
    worker = start(1, 0)
    write_steps(tmp_path, 1, 5, 6)
    with kill_one_worker(str(tmp_path), after_step=5):
        look_twice()
        assert worker.poll() is None
        write_steps(tmp_path, 1, 7)
        assert worker.wait(PATIENCE) == -signal.SIGKILL
    assert list_kills(tmp_path)[0]["step"] == 7


def test_the_worker_is_one_of_the_attempt_that_took_the_step(tmp_path: Path, start: Start) -> None:
    old = start(1, 3)
    new = start(2, 1)
    write_steps(tmp_path, 1, 4)
    with kill_one_worker(str(tmp_path), after_step=5):
        write_steps(tmp_path, 2, 5)
        assert new.wait(PATIENCE) == -signal.SIGKILL
    assert old.poll() is None


def test_a_worker_that_ended_by_itself_was_not_killed(tmp_path: Path, start: Start) -> None:
    worker = start(1, 0)
    worker.communicate()
    assert worker.returncode == 0
    with kill_one_worker(str(tmp_path), after_step=5):
        write_steps(tmp_path, 1, 5)
        wait_for_killers()
    assert list_kills(tmp_path) == []


def test_the_watch_ends_with_the_block_whatever_ends_it(tmp_path: Path, start: Start) -> None:
    worker = start(1, 0)
    with pytest.raises(KeyboardInterrupt), kill_one_worker(str(tmp_path), after_step=5):
        raise KeyboardInterrupt
    wait_for_killers()
    write_steps(tmp_path, 1, 5)
    assert worker.poll() is None
