import contextlib
import os
import subprocess
import sys
import threading

import pytest
from support.small_disk import mount_small_disk
from support.waiting import PATIENCE

from trainrig import storage
from trainrig.errors import ClusterError
from trainrig.processes import append_log
from trainrig.processes.append_log import append_line, open_appender, read_lines
from trainrig.train.run.metrics import MetricsWriter, read_held_out_series, read_series
from trainrig.train.run.run_folder import RunFolder

APPEND = """
import sys
from trainrig.processes.append_log import append_line, open_appender
path, writer = sys.argv[1:]
mine = open_appender(path, f"writer-{writer}")
sys.stdin.read()  # until all are ready
for number in range(40):
    line = f"{writer} {number}\\n".encode()
    mine.write(line) if number % 4 else append_line(path, line)
mine.close()
"""


@pytest.fixture(params=["on disk", "in a bucket"])
def folder(request, tmp_path):
    return str(tmp_path) if request.param == "on disk" else request.getfixturevalue("s3")


def number_lines(first, past):
    return [f"{number:05d}".encode() for number in range(first, past)]


def test_appended_lines_are_read_in_order_and_only_when_complete(folder):
    path = f"{folder}/log.jsonl"
    assert list(read_lines(path)) == []
    first = open_appender(path, "attempt-1")
    for line in number_lines(0, 50):
        first.write(line + b"\n")
    first.flush()
    assert list(read_lines(path)) == number_lines(0, 50)
    first.write(b"half a li")  # the first writer dies here
    first.flush()
    second = open_appender(path, "attempt-2")
    for line in number_lines(50, 60):
        second.write(line + b"\n")
    second.close()
    found = list(read_lines(path))
    assert [line for line in found if line != b"half a li"] == number_lines(0, 60)


@pytest.mark.slow
def test_writers_in_several_processes_lose_nothing(folder):
    path = f"{folder}/log.jsonl"
    writers = [
        subprocess.Popen([sys.executable, "-c", APPEND, path, str(n)], stdin=subprocess.PIPE)
        for n in range(3)
    ]
    for writer in writers:
        writer.stdin.close()
    assert [writer.wait() for writer in writers] == [0] * 3
    found = [tuple(map(int, line.split())) for line in read_lines(path)]
    assert sorted(found) == [(writer, number) for writer in range(3) for number in range(40)]
    for writer in range(3):
        mine = [number for w, number in found if w == writer]
        for kind in (0, 1):  # appended one by one, or by the writer's own appender
            assert [n for n in mine if (n % 4 > 0) == kind] == [
                n for n in range(40) if (n % 4 > 0) == kind
            ]


def test_a_large_log_in_a_bucket_is_several_objects(s3, monkeypatch):
    monkeypatch.setattr(append_log, "SEGMENT", 100)
    path = f"{s3}/log.jsonl"
    appender = open_appender(path, "attempt-0001")
    for line in number_lines(0, 90):
        appender.write(line + b"\n")
        if line.endswith(b"7"):
            appender.flush()
    assert list(read_lines(path)) == number_lines(0, 88)
    appender.close()
    assert list(read_lines(path)) == number_lines(0, 90)
    names = [name.removeprefix(f"{path}/") for name in storage.list_files(path)]
    assert names == [f"attempt-0001-{n:06d}.jsonl" for n in range(1, 7)]
    assert all(storage.measure_size(f"{path}/{name}") <= 102 for name in names)


@pytest.mark.slow
def test_in_a_bucket_a_thread_puts_what_there_is(s3, monkeypatch):
    monkeypatch.setattr(append_log, "FLUSH_SECONDS", 0.01)
    put = threading.Event()
    write = storage.write

    def seen(path, data):
        write(path, data)
        put.set()

    monkeypatch.setattr(storage, "write", seen)
    appender = open_appender(f"{s3}/log.jsonl", "one")
    appender.write(b"a line\n")
    assert put.wait(PATIENCE)
    assert list(read_lines(f"{s3}/log.jsonl")) == [b"a line"]
    appender.close()


@pytest.mark.slow
def test_writing_does_not_wait_for_a_bucket_that_does_not_answer(s3, monkeypatch):
    monkeypatch.setattr(append_log, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(append_log, "SEGMENT", 100)
    asked = threading.Event()
    answers = threading.Event()
    write = storage.write

    def slow(path, data):
        asked.set()
        assert answers.wait(PATIENCE)
        write(path, data)

    monkeypatch.setattr(storage, "write", slow)
    appender = open_appender(f"{s3}/log.jsonl", "one")
    appender.write(b"first\n")
    assert asked.wait(PATIENCE)
    for line in number_lines(0, 90):
        appender.write(line + b"\n")
    answers.set()
    appender.close()
    assert list(read_lines(f"{s3}/log.jsonl")) == [b"first", *number_lines(0, 90)]


@pytest.mark.slow
def test_an_error_of_the_bucket_is_raised_at_the_next_write(s3, monkeypatch):
    monkeypatch.setattr(append_log, "FLUSH_SECONDS", 0.01)
    refused = ClusterError("S3 answers 503")

    def refuse(path, data):
        raise refused

    appender = open_appender(f"{s3}/log.jsonl", "one")
    monkeypatch.setattr(storage, "write", refuse)
    appender.write(b"first\n")
    appender._thread.join(PATIENCE)  # type: ignore[attr-defined]
    for again in (appender.flush, appender.close, lambda: appender.write(b"second\n")):
        with pytest.raises(ClusterError, match="503"):
            again()


def test_a_line_too_long_to_be_appended_whole_is_refused(folder):
    append_line(f"{folder}/log.jsonl", b"x" * 4095 + b"\n")
    with pytest.raises(AssertionError, match="line of 4097"):
        append_line(f"{folder}/log.jsonl", b"x" * 4096 + b"\n")
    assert len(list(read_lines(f"{folder}/log.jsonl"))) == 1


def test_events_in_a_bucket_are_in_the_order_of_their_times(s3):
    run = RunFolder(f"{s3}/run")
    for number in range(12):
        RunFolder(f"{s3}/run").record("event", number=number)
    assert [event["number"] for event in run.read_events()] == list(range(12))
    assert {event["pid"] for event in run.read_events()} == {os.getpid()}


def test_metrics_in_a_bucket_come_back_attempt_by_attempt(s3):
    for attempt, first, loss in ((1, 1, 1.0), (2, 3, 2.0)):
        writer = MetricsWriter(f"{s3}/run", attempt, first - 1)
        for step in range(first, first + 4):
            writer.write(step, {"train/loss": loss})
        writer.write(first + 3, {"eval/loss": loss, "eval/books/old/loss": loss})
        writer.close()
    found = [(line["step"], line["train/loss"]) for line in read_series(f"{s3}/run")]
    assert found == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0), (6, 2.0)]
    held_out = [
        (line["step"], line["eval/books/old/loss"]) for line in read_held_out_series(f"{s3}/run")
    ]
    assert held_out == [(4, 1.0), (6, 2.0)]
    boards = storage.list_files(f"{s3}/run/tensorboard")
    assert [board[-9:] for board in boards] == ["attempt-1", "attempt-2"]
    assert all(storage.measure_size(board) > 300 for board in boards)


def test_metrics_are_in_a_bucket_once_they_are_flushed(s3, monkeypatch):
    monkeypatch.setattr(append_log, "FLUSH_SECONDS", 3600.0)  # the thread does nothing
    writer = MetricsWriter(f"{s3}/run", 1, 0)
    writer.write(1, {"train/loss": 1.0})
    writer.flush()
    assert [line["step"] for line in read_series(f"{s3}/run")] == [1]
    writer.close()


@pytest.mark.slow
def test_lines_of_thousands_of_ranks_are_fetched_once(monkeypatch):
    """More objects than a test server could take, so storage's two calls are replaced."""
    names = [f"s3://bucket/log.jsonl/{n:020d}.{n:08x}.jsonl" for n in range(9_000)]
    fetched = []

    def read(name):
        fetched.append(name)
        return b"{}\n"

    monkeypatch.setattr(storage, "list_files", lambda folder: names)
    monkeypatch.setattr(storage, "read", read)
    for _ in range(2):
        assert len(list(read_lines("s3://bucket/log.jsonl"))) == len(names)
    assert sorted(fetched) == names


@pytest.fixture
def small_disk(tmp_path):
    """Return a file system with 64 KiB of space."""
    with mount_small_disk(tmp_path / "disk", "64k") as disk:
        yield disk


def fill(place):
    """Fill the disk, up to the free rest of the last page of each file."""
    with (place / "other").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def test_lines_that_meet_a_full_disk_wait_for_room_and_none_is_torn(small_disk, caplog):
    writer = open_appender(f"{small_disk}/log.jsonl", "attempt-1")
    line = b"x" * 1_000 + b"\n"
    writer.write(line)
    fill(small_disk)
    for _ in range(8):  # the page holds three and a half more
        writer.write(line)
    writer.flush()
    written = (small_disk / "log.jsonl").read_bytes()
    assert written.endswith(b"\n") and len(written) < 9 * len(line)
    assert len([m for m in caplog.messages if "kept and written later" in m]) == 1
    with pytest.raises(ClusterError, match=r"log\.jsonl: no space for the last \d+ bytes"):
        open_full = open_appender(f"{small_disk}/log.jsonl", "attempt-2")
        open_full.write(b"y" * 8_000 + b"\n")
        open_full.close()
    (small_disk / "other").unlink()
    writer.write(b"last\n")
    writer.close()
    assert list(read_lines(f"{small_disk}/log.jsonl")) == [line[:-1]] * 9 + [b"last"]


def test_events_that_meet_a_full_disk_are_written_with_the_next(small_disk):
    folder = RunFolder(str(small_disk))
    folder.record("first")
    fill(small_disk)
    for number in range(50):
        folder.record("many", number=number, filling="x" * 200)
    (small_disk / "other").unlink()
    folder.record("last")
    found = list(folder.read_events())
    assert [event["event"] for event in found] == ["first", *["many"] * 50, "last"]
    assert [event["number"] for event in found[1:-1]] == list(range(50))


@pytest.mark.timeout(120)
def test_metrics_that_meet_a_full_disk_are_all_there_when_it_has_room_again(small_disk, caplog):
    writer = MetricsWriter(str(small_disk), attempt=1, resumed_step=0)
    fill(small_disk)
    for step in range(1, 101):
        writer.write(step, {"train/loss": 1 / step, "train/lr": 0.1})
        if step % 20 == 0:
            writer.flush()
    assert len(read_series(str(small_disk))) < 100
    (small_disk / "other").unlink()
    writer.close()
    assert [line["step"] for line in read_series(str(small_disk))] == list(range(1, 101))
    assert "torn" not in caplog.text
