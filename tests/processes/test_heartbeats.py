import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import PATIENCE

from trainrig.processes.heartbeats import (
    UNSUPERVISED,
    Heartbeat,
    HeartbeatReporter,
    _Pace,
    compute_send_interval,
)
from trainrig.processes.process_identity import Process

FIRST = Heartbeat(rank=1, processes=(Process.here(),), node="A")


class Supervisor:
    """Collector of heartbeats; `heard` waits for one."""

    def __init__(self):
        self.beats = []
        self.stop = False
        self.broken = False
        self._news = threading.Condition()

    def __call__(self, heartbeat):
        with self._news:
            self.beats.append(heartbeat)
            self._news.notify_all()
        if self.broken:
            raise ConnectionError
        return self.stop

    def heard(self, true_of):
        with self._news:
            assert self._news.wait_for(lambda: any(map(true_of, self.beats)), timeout=PATIENCE)


def make_reporter(supervisor):
    return HeartbeatReporter(FIRST, supervisor, every=0.005, hang_seconds=30.0)


def test_the_newest_beat_reaches_the_supervisor_and_its_wish_comes_back():
    supervisor = Supervisor()
    watch = make_reporter(supervisor)
    supervisor.heard(lambda heartbeat: heartbeat == FIRST)
    watch.heartbeat(3, "train")
    supervisor.heard(
        lambda heartbeat: (heartbeat.step, heartbeat.doing, heartbeat.count) == (3, "train", 1)
    )
    assert not watch.stop_wanted()
    supervisor.stop = True
    seen = len(supervisor.beats)
    watch.heartbeat(4, "train")
    supervisor.heard(lambda heartbeat: len(supervisor.beats) > seen + 1)
    assert watch.stop_wanted()
    assert watch.step == 4
    watch.close()


def test_a_lost_supervisor_stops_no_rank():
    supervisor = Supervisor()
    supervisor.broken = True
    watch = make_reporter(supervisor)
    watch.heartbeat(1, "train")
    supervisor.heard(lambda heartbeat: heartbeat.count == 1)
    assert not watch.stop_wanted()
    supervisor.broken = False
    supervisor.stop = True
    supervisor.heard(lambda heartbeat: watch.stop_wanted())
    watch.close()


def test_the_last_heartbeat_is_sent_before_the_end():
    supervisor = Supervisor()
    watch = HeartbeatReporter(FIRST, supervisor, every=3600.0, hang_seconds=30.0)
    supervisor.heard(lambda heartbeat: True)
    watch.heartbeat(9, "save")
    watch.close()
    assert supervisor.beats[-1].step == 9


def test_a_kind_of_work_is_usual_once_it_was_done_to_its_end():
    supervisor = Supervisor()
    watch = HeartbeatReporter(FIRST, supervisor, every=3600.0, hang_seconds=30.0)
    seen = []
    for step, doing in [
        (0, "load"),
        (4, "train"),
        (4, "train"),  # the second micro-batch may be compiling too
        (5, "train"),
        (5, "evaluate"),
        (5, "evaluate"),
        (5, "train"),
        (6, "evaluate"),
        (6, "save"),
    ]:
        watch.heartbeat(step, doing)
        seen.append(watch._heartbeat.usual)
    watch.close()
    assert seen == [False, False, False, True, False, False, True, True, False]


@pytest.mark.parametrize(
    ("least", "step_seconds", "hang_seconds", "expected"),
    [
        (0.2, None, 30.0, 0.2),
        (0.2, 0.1, 30.0, 0.2),
        (0.2, 1.2, 30.0, 0.6),
        (0.2, 90.0, 30.0, 1.0),
        (0.2, 90.0, 5.0, 0.5),
        (8.0, 90.0, 30.0, 8.0),
    ],
)
def test_there_is_something_to_tell_twice_a_step_and_once_a_second(
    least, step_seconds, hang_seconds, expected
):
    heartbeat = Heartbeat(rank=0, processes=(), node="A", step_seconds=step_seconds)
    assert compute_send_interval(least, heartbeat, hang_seconds) == expected


@given(st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(0.0, 50.0)), min_size=1, max_size=60))
def test_the_pace_is_the_median_step_without_what_lies_between(steps):
    pace = _Pace()
    now = 0.0
    figure = None
    pace.update(0, "load", now)
    for step, (seconds, between) in enumerate(steps, start=10):
        pace.update(step, "train", now)
        pace.update(step, "train", now + seconds / 2)
        now += seconds
        figure = pace.update(step + 1, "save", now)
        now += between
    recent = sorted(seconds for seconds, _ in steps[-31:])
    middle = len(recent) // 2
    low = recent[middle - 1 if len(recent) % 2 == 0 else middle]
    assert low - 1e-6 <= figure <= recent[middle] + 1e-6


def test_nobody_watches_without_a_supervisor():
    UNSUPERVISED.heartbeat(1, "train")
    assert not UNSUPERVISED.stop_wanted()
