"""Messages about a followed run, from a storage that fails at times."""

import pytest
from support.launch.clocked import Clock

from trainrig import storage
from trainrig.errors import ClusterError
from trainrig.launch.submit.follow import SILENT_SECONDS, Following

NO_ANSWER = [ClusterError("s3://bucket: no answer"), OSError(5, "no answer")]


class Followed:
    """A followed run, and the messages about it."""

    def __init__(self, home):
        self.run = home.create("evaluate", "/data/out")
        self.run.take_attempt("job", "http://here", "", {})
        self.lines = []
        self.said = []
        self.clock = Clock()
        self.following = Following(
            self.run, self.lines.append, self.said.append, self.clock, self.clock.sleep
        )

    def log(self, line):
        appender = self.run.open_log(1, len(self.lines))
        appender.write(line)
        appender.close()


@pytest.fixture
def followed(home):
    return Followed(home)


@pytest.fixture
def fail(monkeypatch):
    """Return a function that injects faults.

    `fail(name, when, error)` makes a function of storage raise while `when()`.
    """

    def make(name, when, error):
        done = getattr(storage, name)

        def asked(*arguments):
            if when():
                raise error
            return done(*arguments)

        monkeypatch.setattr(storage, name, asked)

    return make


@pytest.mark.parametrize("error", NO_ANSWER)
def test_a_storage_that_answers_again_is_read_on(followed, fail, error):
    clock = followed.clock
    fail("list_files", lambda: 5.0 < clock.now < SILENT_SECONDS, error)

    def end():
        if clock.now > SILENT_SECONDS + 5.0 and not followed.following.record.read_status().ended:
            followed.run.record("ended", 1, state="done", exit_code=0)

    clock.after_sleep = end
    states = [status.state for status in followed.following.watch()]
    assert (states[0], states[-1]) == ("queued", "done")
    assert sum("no answer" in line for line in followed.said) == 1


@pytest.mark.parametrize("error", NO_ANSWER)
def test_failing_storage_is_reported_with_the_way_to_continue(followed, fail, error):
    clock = followed.clock
    fail("list_files", lambda: clock.now > 5.0, error)
    with pytest.raises(ClusterError, match="the run continues without") as error_info:
        list(followed.following.watch())
    run = followed.run
    assert f"`trainrig logs {run.id} --home {run.home} --follow` follows it" in str(
        error_info.value
    )
    assert clock.now >= 5.0 + SILENT_SECONDS
    assert sum("no answer" in line for line in followed.said) == 1


def test_no_line_is_lost_or_repeated_when_storage_fails(followed, monkeypatch):
    clock = followed.clock
    read = type(followed.run).read_events
    followed.log(b"first\n")
    followed.following.look()
    followed.log(b"second\n")

    def events(run, attempt=None):
        if 5.0 < clock.now < 10.0 and followed.following._lines:
            raise ClusterError("no answer")
        return read(run, attempt)

    monkeypatch.setattr(type(followed.run), "read_events", events)

    def end():
        if clock.now > 6.0 and b"third" not in followed.lines:
            monkeypatch.setattr(clock, "after_sleep", lambda: None)
            followed.log(b"third\n")
            followed.run.record("ended", 1, state="done", exit_code=0)

    clock.after_sleep = end
    list(followed.following.watch())
    assert followed.lines == [b"first", b"second", b"third"]
    assert any("no answer" in line for line in followed.said)
