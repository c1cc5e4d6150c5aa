import os
import shutil
import subprocess
import sys

import pytest

from trainrig.train.run.run_folder import EVENTS, RunFolder

APPEND = """
import sys
from trainrig.train.run.run_folder import RunFolder
folder = RunFolder(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()  # until all are ready
for number in range(1_000):
    folder.record("event", writer=int(sys.argv[2]), number=number, filling="x" * (number * 3))
"""


def test_events_of_several_processes_stay_whole_lines(tmp_path):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", APPEND, str(tmp_path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for number in range(4)
    ]
    assert [writer.stdout.readline() for writer in writers] == [b"ready\n"] * 4
    for writer in writers:
        writer.stdin.close()
    assert [writer.wait() for writer in writers] == [0] * 4
    events = list(RunFolder(str(tmp_path)).read_events())
    assert len(events) == 4 * 1_000
    for number, writer in enumerate(writers):
        mine = [event for event in events if event["writer"] == number]
        assert [event["number"] for event in mine] == list(range(1_000))
        assert {event["pid"] for event in mine} == {writer.pid}


def test_an_event_tells_when_who_and_what(tmp_path):
    folder = RunFolder(str(tmp_path))
    folder.record("checkpoint", step=4)
    (event,) = folder.read_events()
    assert (event["event"], event["step"], event["pid"]) == ("checkpoint", 4, os.getpid())
    assert event["host"] and abs(event["time"] - (tmp_path / EVENTS).stat().st_mtime) < 5


def test_a_line_still_being_written_is_left_out(tmp_path):
    folder = RunFolder(str(tmp_path))
    folder.record("one")
    folder.record("two")
    path = tmp_path / EVENTS
    path.write_bytes(path.read_bytes()[:-1])
    assert [event["event"] for event in folder.read_events()] == ["one"]


def test_an_event_too_long_to_be_appended_whole_is_refused(tmp_path):
    folder = RunFolder(str(tmp_path))
    with pytest.raises(AssertionError, match="line of 5"):
        folder.record("event", filling="x" * 5_000)
    assert list(folder.read_events()) == []


def test_attempts_are_numbered_in_a_row_and_remembered(tmp_path):
    folder = RunFolder(str(tmp_path))
    assert folder.read_attempts() == []
    taken = [folder.take_attempt(step) for step in (0, 8, 8)]
    assert [(a.number, a.resumed_step) for a in taken] == [(1, 0), (2, 8), (3, 8)]
    assert RunFolder(str(tmp_path)).read_attempts() == taken


def test_an_event_torn_by_a_full_disk_costs_no_other(tmp_path, caplog):
    folder = RunFolder(str(tmp_path))
    folder.record("first")
    with (tmp_path / EVENTS).open("a") as file:
        file.write('{"event": "torn", "ti\n')
    folder.record("last")
    assert [event["event"] for event in folder.read_events()] == ["first", "last"]
    list(folder.read_events())  # reading again does not log it again
    assert len([m for m in caplog.messages if "skipped an incomplete line" in m]) == 1


def test_a_folder_that_was_removed_is_known_by_its_attempt(tmp_path):
    folder = RunFolder(str(tmp_path / "run"))
    attempt = folder.take_attempt(0)
    assert not folder.is_gone(attempt)
    shutil.rmtree(folder.path)
    folder.record("late")  # some events are returned twice
    assert folder.is_gone(attempt)
