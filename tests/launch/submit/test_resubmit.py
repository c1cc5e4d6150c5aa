"""Followed runs that are submitted again, on jobs without Ray and with a controlled clock."""

import contextlib
import subprocess
import time

import pytest
from support.launch import jobs_server
from support.launch.clocked import Clock

from trainrig.errors import ClusterError
from trainrig.launch.submit.follow import Following
from trainrig.launch.submit.resubmit import GONE_SECONDS, HUNG_SECONDS, Resubmitter
from trainrig.launch.supervise.attempt_ends import Limits
from trainrig.launch.supervise.run_record import LOST_SECONDS

AHEAD = LOST_SECONDS + 31.0  # s that the clock here is ahead of the run's clock


class Watched:
    """A watched run, of which each resubmission makes a new attempt that is done."""

    def __init__(self, home, cluster):
        self.run = home.create("evaluate", "/data/out")
        self.cluster = cluster
        self.clock = Clock()
        self.said = []
        self.sent = 0
        self.attempt = self.take()
        following = Following(
            self.run, lambda line: None, self.said.append, self.clock, self.clock.sleep
        )
        self.watch = Resubmitter(following, Limits(), self.again, self.said.append, self.clock)

    def take(self):
        return self.run.take_attempt("job-{attempt}", self.cluster.address, "", {})

    def again(self):
        self.sent += 1
        attempt = self.take()
        self.run.record("ended", attempt.number, state="done", exit_code=0)
        return attempt

    def job(self, *command):
        """Start `command` as the attempt's job."""
        process = subprocess.Popen(command, start_new_session=True)
        self.cluster.jobs[self.attempt.submission_id] = process
        return process

    def begun(self):
        self.run.record("started", 1)
        self.run.write_heartbeat(1, "running")

    def end(self):
        self.run.record("ended", 1, state="done", exit_code=0)


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", jobs_server.TOKEN)
    with jobs_server.serving() as found:
        yield found


@pytest.fixture
def watched(local, cluster):
    return Watched(local, cluster)


@pytest.fixture
def other_clock(monkeypatch):
    """Return a context in which the time is the run's machine's; outside it, the time is ahead."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + AHEAD)

    @contextlib.contextmanager
    def there():
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", now)
            yield

    return there


def send_heartbeats(watched, there, until):
    """Make the run send heartbeats by its own machine's clock, and end at `until`."""
    last = [0.0]

    def after_sleep():
        if watched.clock.now - last[0] >= 5.0:
            last[0] = watched.clock.now
            with there():
                watched.run.write_heartbeat(1, "running", step=int(watched.clock.now))
        if watched.clock.now >= until:
            watched.end()

    watched.clock.after_sleep = after_sleep


def test_a_run_whose_job_ended_without_a_record_is_submitted_again(watched):
    watched.begun()
    watched.job("false").wait()
    assert watched.watch.wait_for_end()["attempt"] == 2
    assert watched.sent == 1
    assert [e["cause"] for e in watched.run.read_events(1) if e["event"] == "resubmitted"]


def test_a_run_with_a_stop_request_is_not_submitted_again(watched):
    watched.begun()
    watched.job("false").wait()
    watched.run.request_stop()
    ended = watched.watch.wait_for_end()
    assert (ended["attempt"], ended["state"], ended["cause"]) == (1, "stopped", "stopped")
    assert ended["exit_code"] == 75
    assert watched.sent == 0 and watched.run.find_newest_attempt() == 1


def test_a_run_resubmitted_by_another_user_is_followed(watched, cluster):
    watched.begun()
    watched.job("false").wait()
    answer = cluster.answer

    def late(*asked):  # between the last read of the record and the decision
        if watched.clock.now >= 2.0 and watched.run.find_newest_attempt() == 1:
            watched.take()
        return answer(*asked)

    cluster.answer = late

    def after_sleep():
        if watched.clock.now >= 4.0 and not watched.run.read_status().ended:
            watched.run.record("ended", 2, state="done", exit_code=0)

    watched.clock.after_sleep = after_sleep
    assert watched.watch.wait_for_end()["attempt"] == 2
    assert watched.sent == 0 and watched.run.find_newest_attempt() == 2


@pytest.mark.slow
def test_a_run_that_beats_is_not_silent_by_a_clock_that_is_ahead(watched, cluster, other_clock):
    with other_clock():
        watched.begun()
    assert watched.run.read_state() == "lost"
    watched.job("sleep", "600")
    send_heartbeats(watched, other_clock, LOST_SECONDS + HUNG_SECONDS + 10.0)
    assert watched.watch.wait_for_end()["attempt"] == 1
    assert watched.sent == 0 and not cluster.stopped


@pytest.mark.slow
def test_a_run_with_heartbeats_is_not_lost_with_its_cluster(watched, cluster, other_clock):
    with other_clock():
        watched.begun()
    cluster.answer = lambda *_: (503, "gone")
    send_heartbeats(watched, other_clock, LOST_SECONDS + GONE_SECONDS + 10.0)
    assert watched.watch.wait_for_end()["attempt"] == 1


@pytest.mark.slow
def test_a_run_without_heartbeats_by_the_local_clock_is_submitted_again(
    watched, cluster, other_clock
):
    with other_clock():
        watched.begun()
    watched.job("sleep", "600")
    assert watched.watch.wait_for_end()["attempt"] == 2
    assert cluster.stopped == {"job-1"}
    assert watched.clock.now >= LOST_SECONDS + HUNG_SECONDS


def test_a_run_without_heartbeats_or_cluster_is_given_up(watched, cluster, other_clock):
    with other_clock():
        watched.begun()
    cluster.answer = lambda *_: (503, "gone")
    with pytest.raises(ClusterError, match="lost with its cluster"):
        watched.watch.wait_for_end()
    assert watched.clock.now >= LOST_SECONDS


def test_failing_storage_during_the_decision_ends_nothing(watched, monkeypatch):
    watched.begun()
    watched.job("false").wait()
    asked = type(watched.run).stop_requested
    times = []

    def once(run, attempt):
        if watched.clock.now >= 2.0 and not times:
            times.append(1)
            raise OSError(5, "no answer")
        return asked(run, attempt)

    monkeypatch.setattr(type(watched.run), "stop_requested", once)
    monkeypatch.setattr(watched.watch.following, "_tolerate_silence", None)  # must not be used
    monkeypatch.setattr(type(watched.run), "_state_before_end", lambda *_: "running")
    assert watched.watch.wait_for_end()["attempt"] == 2
    assert times
