import itertools

import pytest

from trainrig.parallel.stop_consensus import BETWEEN_QUESTIONS, StopQuestions


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_ranks_hear_that_one_of_them_says_yes(world, ranks):
    for mine in itertools.product([False, True], repeat=world):
        assert ranks(world, "agreed", mine=mine) == [any(mine)] * world


class Told:
    """Consensus of one rank among simulated others, the slowest of which takes `slowest`."""

    alone = False

    def __init__(self, slowest=0.0):
        self.asked = 0
        self.slowest = slowest
        self.seconds = []
        self.open = 0  # questions whose answer is not yet read
        self.waited = []  # number of calls of `ask` between each question and its answer
        self.calls = 0

    def begin(self, mine, number):
        self.asked = self.asked + 1
        self.open = self.open + 1
        self.seconds.append(number)
        calls = self.calls

        def heard():
            self.open -= 1
            self.waited.append(self.calls - calls)
            return mine, max(number, self.slowest)

        return heard


def count_questions(consensus, seconds, within, micro_batches=8, steps=4):
    """Return how often each of `steps` steps of `seconds` asks."""
    now = [0.0]
    questions = StopQuestions(consensus, within, lambda: now[0])
    found = []
    for step in range(steps):
        before = consensus.asked
        for _ in range(micro_batches):
            consensus.calls += 1
            assert questions.ask(step, False) is False
            assert consensus.open <= 1
            now[0] += seconds / micro_batches
        found.append(consensus.asked - before)
    assert questions.settle() is False and consensus.open == 0
    return found


def test_a_short_step_asks_once_and_hears_the_answer_a_step_later():
    consensus = Told()
    assert count_questions(consensus, seconds=1.0, within=30.0, steps=6) == [8, 1, 1, 1, 1, 1]
    assert consensus.seconds[-1] == pytest.approx(1.0)
    # The first step, and the first question that measures one, wait for their answers.
    assert consensus.waited == [0] * 9 + [8] * 3 + [7]


def test_a_long_step_asks_as_often_as_a_stop_needs():
    # A step of 8 micro-batches takes 80 s and a stop 160 s: a question every 20 s, or 2
    # micro-batches.
    assert BETWEEN_QUESTIONS == 0.125
    assert count_questions(Told(), seconds=80.0, within=160.0) == [8, 4, 4, 4]
    assert count_questions(Told(), seconds=80.0, within=1.0) == [8, 8, 8, 8]


def test_an_answer_is_waited_for_where_one_micro_batch_is_as_long_as_all_that_may_lie_between():
    consensus = Told()
    count_questions(consensus, seconds=80.0, within=79.0)
    assert set(consensus.waited) == {0}
    consensus = Told()
    count_questions(consensus, seconds=80.0, within=81.0)
    assert set(consensus.waited[9:-1]) == {1}


def test_the_slowest_rank_decides_how_often_all_ask():
    fast = count_questions(Told(slowest=80.0), seconds=1.0, within=160.0)
    slow = count_questions(Told(), seconds=80.0, within=160.0)
    assert fast == slow


def test_a_rank_alone_need_not_ask():
    consensus = Told()
    consensus.alone = True
    questions = StopQuestions(consensus, 30.0)
    assert [questions.ask(0, mine) for mine in (False, True, False)] == [False, True, False]
    assert consensus.asked == 0


@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("seconds", [0.01, 1.0, 3.0, 4.0, 40.0])
@pytest.mark.parametrize("wanted_at", range(1, 9))
def test_a_stop_is_heard_within_a_quarter_of_its_time_or_a_micro_batch(
    wanted_at, seconds, micro_batches
):
    """A micro-batch takes `seconds`; a stop is requested just after `wanted_at` micro-batches."""
    now = [0.0]
    number = 0
    within = 30.0
    questions = StopQuestions(Told(), within, lambda: now[0])
    wanted = (wanted_at + micro_batches - 0.99) * seconds  # the first step waits for each answer
    for step in range(100):
        for _ in range(micro_batches):
            number += 1
            if questions.ask(step, now[0] >= wanted):
                short = 2 * BETWEEN_QUESTIONS * within
                assert now[0] - wanted <= max(short, seconds)
                assert now[0] - wanted <= 2 * max(micro_batches, 1) * seconds
                return
            now[0] += seconds
    pytest.fail("not heard")


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_stop_before_the_same_micro_batch(world, ranks):
    for wanting in range(world):
        found = ranks(world, "asked_to_stop", wanting=wanting, at=9, micro_batches=4)
        # Asked when the third step begins, answered when the fourth does.
        assert found == [13] * world
