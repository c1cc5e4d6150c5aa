import itertools

import pytest

from trainrig.parallel.stop_consensus import BETWEEN_QUESTIONS, StopQuestions


@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_ranks_hear_that_one_of_them_says_yes(world, ranks):
    for mine in itertools.product([False, True], repeat=world):
        assert ranks(world, "agreed", mine=mine) == [any(mine)] * world


class Told:
    """A consensus of one rank that sees itself among others, whose slowest takes `slowest`."""

    alone = False

    def __init__(self, slowest=0.0):
        self.asked, self.slowest, self.seconds = 0, slowest, []

    def any_and_most(self, mine, number):
        self.asked += 1
        self.seconds.append(number)
        return mine, max(number, self.slowest)


def asked_in_steps(consensus, seconds, within, micro_batches=8, steps=4):
    """How often each of `steps` steps asks, in each of which `seconds` pass."""
    now = [0.0]
    questions, found = StopQuestions(consensus, within, lambda: now[0]), []
    for step in range(steps):
        before = consensus.asked
        for _ in range(micro_batches):
            assert questions.ask(step, False) is False
            now[0] += seconds / micro_batches
        found.append(consensus.asked - before)
    return found


def test_a_step_that_is_short_asks_once():
    consensus = Told()
    assert asked_in_steps(consensus, seconds=1.0, within=30.0) == [8, 1, 1, 1]
    assert consensus.seconds[-1] == pytest.approx(1.0)


def test_a_long_step_asks_as_often_as_a_stop_needs():
    # 80 s a step of 8 micro-batches, and 80 s for a stop: 20 s, so 2 micro-batches, lie between.
    assert BETWEEN_QUESTIONS == 0.25
    assert asked_in_steps(Told(), seconds=80.0, within=80.0) == [8, 4, 4, 4]
    assert asked_in_steps(Told(), seconds=80.0, within=1.0) == [8, 8, 8, 8]


def test_the_slowest_rank_decides_how_often_all_ask():
    fast = asked_in_steps(Told(slowest=80.0), seconds=1.0, within=80.0)
    slow = asked_in_steps(Told(), seconds=80.0, within=80.0)
    assert fast == slow


def test_a_rank_alone_need_not_ask():
    consensus = Told()
    consensus.alone = True
    questions = StopQuestions(consensus, 30.0)
    assert [questions.ask(0, mine) for mine in (False, True, False)] == [False, True, False]
    assert consensus.asked == 0


@pytest.mark.parametrize("wanted_at", range(1, 9))
def test_a_stop_is_heard_before_the_next_step(wanted_at):
    now = [0.0]
    consensus, number = Told(), 0
    questions = StopQuestions(consensus, 30.0, lambda: now[0])
    for step in range(4):
        for micro_batch in range(4):
            number += 1
            now[0] += 0.01
            if questions.ask(step, number >= wanted_at + 4):  # the first step asks each time
                assert micro_batch == 0 and 0 <= number - (wanted_at + 4) < 4
                return
    pytest.fail("not heard")
