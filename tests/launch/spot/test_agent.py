"""Reactions of a node's agent to preemption notices."""

import itertools
import time
from types import SimpleNamespace

import pytest

from trainrig.launch.spot import agent
from trainrig.launch.spot.agent import Agent
from trainrig.launch.spot.preemption_notices import Notice, Unclear

WARNING = Notice("rebalance", None)


class ListSource:
    """A source that yields a list of notices and then ends."""

    pause = 0.0

    def __init__(self, *says):
        self.says = list(says)

    def look(self):
        said = self.says.pop(0)
        if isinstance(said, Unclear):
            raise said
        return said

    def over(self):
        return not self.says


def run_agent(*says, problems=(), wait=lambda seconds: None):
    """Return the notices that led to a drain; the first attempts fail with `problems`."""
    drained = []
    left = itertools.chain(problems, itertools.repeat(""))

    def drain(notice):
        drained.append(notice)
        return next(left)

    Agent(ListSource(*says), drain, wait).run()
    return drained


def soon(seconds=60.0):
    return Notice("it goes", time.time() + seconds)


def test_a_repeated_notice_with_a_deadline_drains_once():
    notice = soon()
    assert run_agent(None, notice, notice, notice) == [notice]


def test_a_warning_drains_nothing_until_it_comes_true():
    notice = soon()
    assert run_agent(WARNING, WARNING, notice) == [notice]


def test_trouble_is_never_a_notice_and_no_trouble_makes_a_notice_be_missed(caplog):
    notice = soon()
    down = [Unclear("down")] * 3
    assert run_agent(*down) == []
    assert run_agent(*down, notice, *down, notice) == [notice]
    assert sum("down" in line for line in caplog.messages) == 3  # each outage is logged once


def test_a_changed_deadline_is_sent_again():
    first = soon(60)
    second = soon(30)
    assert run_agent(first, second) == [first, second]


def test_an_unreachable_head_is_retried_until_it_accepts(caplog):
    notice = soon()
    assert run_agent(notice, problems=["no head"] * 4) == [notice] * 5
    assert sum("no head" in line for line in caplog.messages) == 1


def test_tries_end_at_the_deadline(caplog, monkeypatch):
    waits = []
    clock = [time.time()]
    monkeypatch.setattr(agent, "time", SimpleNamespace(time=lambda: clock[0]))

    def wait(seconds):
        waits.append(seconds)
        clock[0] += 0.05

    drained = run_agent(soon(0.3), problems=["no head"] * 1000, wait=wait)
    assert 1 < len(drained) < 20
    assert "giving up" in caplog.text
    assert all(seconds >= 1.0 for seconds in waits[:-1])


def test_a_late_notice_is_sent_nevertheless():
    late = soon(-100)
    (notice,) = run_agent(late)
    assert notice.what == late.what
    assert notice.deadline > time.time()


def test_after_an_error_the_agent_waits_before_the_next_read():
    waits = []
    run_agent(Unclear("down"), None, wait=waits.append)
    assert waits == [1.0, 0.0]


@pytest.mark.parametrize("again", [None, WARNING])
def test_a_notice_taken_back_and_given_again_is_drained_again(again):
    notice = soon()
    assert run_agent(notice, again, notice) == [notice, notice]
