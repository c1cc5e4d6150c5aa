import dataclasses
import json

import pytest

from trainrig import storage
from trainrig.processes import append_log
from trainrig.processes.append_log import Tail, append_line, open_appender
from trainrig.train.run.progress import ProgressFollower, TrainingProgress
from trainrig.train.run.run_folder import RunFolder

TOLD = TrainingProgress(
    step=120,
    loss=2.31449,
    held_out=None,
    tokens_per_second=41_200.4,
    workers=1,
    restarts=0,
    seconds_left=None,
    waiting=None,
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "loss 2.314, 41,200 tokens/s, 1 worker"),
        ({"loss": None}, "loss NaN, 41,200 tokens/s, 1 worker"),
        (
            {"held_out": 2.5, "workers": 16, "restarts": 2, "seconds_left": 7_980.0},
            "loss 2.314, held-out 2.500, 41,200 tokens/s (2,575 each), 16 workers, 2 restarts, "
            "2 h 13 min left",
        ),
        (
            {"mfu": 0.412, "data_wait": 0.004, "ranks_wait": 0.031, "peak_gib": 61.27},
            "loss 2.314, 41,200 tokens/s at 41% MFU, 1 worker, waits 3% for ranks, 61.3 GiB",
        ),
        (
            {"restarts": 1, "seconds_left": 9.0, "waiting": "waiting for nodes"},
            "loss 2.314, 41,200 tokens/s, 1 worker, 1 restart, waiting for nodes",
        ),
    ],
)
def test_a_line_says_what_there_is_to_say(changes, words):
    assert dataclasses.replace(TOLD, **changes).describe() == words


class Run:
    """Run folder that is written by hand."""

    def __init__(self, folder):
        self.folder = RunFolder(folder)
        self._metrics = open_appender(f"{folder}/metrics.jsonl", "by-hand")

    def update(self, step, time, attempt=1, loss=1.0, workers=2):
        line = {"step": step, "attempt": attempt, "time": time, "train/loss": loss}
        self.write(line | {"train/tokens_per_second": 100.0, "cluster/workers": workers})

    def write(self, line):
        self._metrics.write((json.dumps(line) + "\n").encode())
        self._metrics.flush()


@pytest.fixture(params=["on disk", "in a bucket"])
def run(request, tmp_path):
    return Run(str(tmp_path) if request.param == "on disk" else request.getfixturevalue("s3"))


def test_a_run_is_followed_through_a_restart(run):
    follower = ProgressFollower(run.folder.path, 100)
    assert follower.look() is None
    run.folder.record("attempt_started", attempt=1, workers=2)
    assert follower.look() is None
    run.update(1, 10.0)
    told = follower.look()
    assert (told.step, told.loss, told.workers, told.restarts) == (1, 1.0, 2, 0)
    assert (told.seconds_left, told.waiting, told.held_out) == (None, None, None)
    run.update(5, 18.0, loss=0.5)  # two seconds a step
    run.write({"step": 5, "attempt": 1, "time": 19.0, "eval/loss": 0.7, "eval/web/loss": 0.7})
    told = follower.look()
    assert (told.step, told.loss, told.held_out, told.seconds_left) == (5, 0.5, 0.7, 190.0)

    run.folder.record("attempt_failed", attempt=1)
    assert follower.look().waiting == "workers failed"
    run.folder.record("waiting_for_nodes", step=4)
    assert follower.look().waiting == "waiting for nodes"
    run.folder.record("attempt_started", attempt=2, workers=1)
    told = follower.look()
    assert (told.waiting, told.restarts, told.step) == ("starting 1 worker", 1, 5)
    run.update(6, 20.0)  # a worker that has outlived the first attempt
    assert follower.look().waiting == "starting 1 worker"

    run.update(5, 50.0, attempt=2, workers=1)
    told = follower.look()
    assert (told.step, told.waiting, told.workers) == (5, None, 1)
    assert told.seconds_left is None  # the pause between the attempts is not a pace
    run.update(7, 20.0)
    assert follower.look().step == 5
    run.update(6, 51.0, attempt=2, workers=1)
    assert follower.look().seconds_left == 94.0


def test_only_the_recent_pace_says_how_long_the_rest_takes(run):
    follower = ProgressFollower(run.folder.path, 1_000)
    run.update(1, 0.0)  # the step waited for a compiler
    for step in range(2, 102):
        run.update(step, 1_000.0 + step)
    assert follower.look().seconds_left == pytest.approx(1_000 - 101)


def test_a_tail_reads_each_line_once(run, monkeypatch):
    monkeypatch.setattr(append_log, "SEGMENT", 20)
    path = f"{run.folder.path}/log.jsonl"
    tail = Tail(path)
    appender = open_appender(path, "attempt-0001")
    assert list(tail.read_new_lines()) == []
    seen = []
    for number in range(12):
        appender.write(f"line {number}\n".encode())
        appender.flush()
        seen += tail.read_new_lines()
        append_line(path, f"alone {number}\n".encode())
    appender.close()
    seen += tail.read_new_lines()
    assert list(tail.read_new_lines()) == []
    wanted = [f"{what} {number}" for what in ("line", "alone") for number in range(12)]
    assert sorted(line.decode() for line in seen) == sorted(wanted)


def test_a_tail_waits_for_the_end_of_a_line(tmp_path):
    tail = Tail(str(tmp_path / "log.jsonl"))
    for written, found in ((b"a\nb", [b"a"]), (b"", []), (b"c\n", [b"bc"]), (b"d\n", [b"d"])):
        with (tmp_path / "log.jsonl").open("ab") as file:
            file.write(written)
        assert list(tail.read_new_lines()) == found


def test_a_tail_does_not_read_again_what_cannot_grow(s3, monkeypatch):
    monkeypatch.setattr(append_log, "SEGMENT", 20)
    path = f"{s3}/log.jsonl"
    read = []
    appender = open_appender(path, "attempt-0001")
    for number in range(12):
        appender.write(f"line {number}\n".encode())
    appender.flush()
    append_line(path, b"alone\n")
    tail = Tail(path)
    assert len(list(tail.read_new_lines())) == 13
    opened = storage.open_read
    monkeypatch.setattr(storage, "open_read", lambda name: read.append(name) or opened(name))
    assert list(tail.read_new_lines()) == []
    assert len(read) <= 1  # the newest segment, if it may grow
    appender.close()
