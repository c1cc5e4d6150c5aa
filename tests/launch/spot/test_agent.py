"""What an agent does of what it hears."""

import itertools
import time

import pytest

from trainrig.launch.spot.agent import Agent
from trainrig.launch.spot.notices import Notice, Unclear

WARNING = Notice("rebalance", None)


class Told:
    """A source that tells a list, and is then over."""

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


def heard(*says, problems=(), wait=lambda seconds: None):
    """What was to be drained while the source said this; `problems` of the first tries."""
    drained, left = [], itertools.chain(problems, itertools.repeat(""))

    def drain(notice):
        drained.append(notice)
        return next(left)

    Agent(Told(*says), drain, wait).run()
    return drained


def soon(seconds=60.0):
    return Notice("it goes", time.time() + seconds)


def test_a_notice_with_a_deadline_is_drained_once_however_often_it_is_seen():
    notice = soon()
    assert heard(None, notice, notice, notice) == [notice]


def test_a_warning_drains_nothing_until_it_comes_true():
    notice = soon()
    assert heard(WARNING, WARNING, notice) == [notice]


def test_trouble_is_never_a_notice_and_no_trouble_makes_a_notice_be_missed(caplog):
    notice = soon()
    down = [Unclear("down")] * 3
    assert heard(*down) == []
    assert heard(*down, notice, *down, notice) == [notice]
    assert sum("down" in line for line in caplog.messages) == 3  # each stretch of it once


def test_a_deadline_that_moves_is_told_again():
    first, second = soon(60), soon(30)
    assert heard(first, second) == [first, second]


def test_a_head_that_cannot_be_reached_is_tried_until_it_agrees(caplog):
    notice = soon()
    assert heard(notice, problems=["no head"] * 4) == [notice] * 5
    assert sum("no head" in line for line in caplog.messages) == 1


def test_tries_end_at_the_deadline(caplog):
    waits = []

    def wait(seconds):
        waits.append(seconds)
        time.sleep(0.05)

    drained = heard(soon(0.3), problems=["no head"] * 1000, wait=wait)
    assert 1 < len(drained) < 20
    assert "giving up" in caplog.text
    assert all(seconds >= 1.0 for seconds in waits[:-1])


def test_a_notice_that_comes_too_late_is_told_nevertheless():
    late = soon(-100)
    (told,) = heard(late)
    assert told.what == late.what
    assert told.deadline > time.time()


def test_after_trouble_it_waits_even_if_the_source_does_not():
    waits = []
    heard(Unclear("down"), None, wait=waits.append)
    assert waits == [1.0, 0.0]


@pytest.mark.parametrize("again", [None, WARNING])
def test_a_notice_taken_back_and_given_again_is_drained_again(again):
    notice = soon()
    assert heard(notice, again, notice) == [notice, notice]
