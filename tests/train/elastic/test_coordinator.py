"""The post office, in one event loop: who waits for what, and what a lost one is told again."""

import asyncio

import pytest

from trainrig.processes.heartbeats import Beat
from trainrig.train.elastic.coordinator import Control
from trainrig.train.elastic.messages import End, Order, Word

AT_ONCE = 0.0
LONG = 10.0  # s: nobody waits so long if it works


def beat(rank=0, step=1):
    return Beat(rank, (100 + rank, 200 + rank), f"node{rank}", step, step, "train")


def end(rank=0):
    return End(rank, f"node{rank}", "killed by SIGKILL", "" if rank else "tcp://node0:1")


def order(attempt=2, crew=1):
    return Order(crew, attempt, b"work", "tcp://node0:1")


def in_a_loop(test):
    """`test` as a coroutine in a loop of its own, with a post office."""

    def run():
        async def bounded():
            async with asyncio.timeout(LONG):
                await test(Control())

        asyncio.run(bounded())

    run.__name__ = test.__name__
    return run


async def waits(task):
    """Whether `task` still waits when all that can go on has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)
    return not task.done()


@in_a_loop
async def test_beats_are_looked_at_without_waiting_for_more(control):
    assert not await control.exchange(1, beat(0, step=3))
    assert not await control.exchange(1, beat(0, step=4))
    assert not await control.exchange(1, beat(1))
    seen = await control.look(1, Word.TRAIN, 0, AT_ONCE)
    assert {rank: each.step for rank, each in seen.beats.items()} == {0: 4, 1: 1}
    assert seen.ends == {}


@pytest.mark.parametrize("word", [Word.STOP, Word.END])
def test_a_word_reaches_the_ranks_with_their_next_beats(word):
    @in_a_loop
    async def told(control):
        await control.look(1, word, 0, AT_ONCE)
        assert await control.exchange(1, beat())
        await control.look(1, Word.TRAIN, 0, AT_ONCE)
        assert not await control.exchange(1, beat())

    told()


@in_a_loop
async def test_an_outlived_rank_should_stop_and_is_not_looked_at(control):
    await control.exchange(1, beat())
    assert not await control.exchange(2, beat(1))
    assert await control.exchange(1, beat())
    assert (await control.look(2, Word.TRAIN, 0, AT_ONCE)).beats == {1: beat(1)}
    assert (await control.look(1, Word.END, 0, LONG)).beats == {}
    assert not await control.exchange(2, beat())  # nor is its word for those that came after it


@in_a_loop
async def test_a_look_returns_as_soon_as_another_rank_has_ended(control):
    looking = asyncio.create_task(control.look(1, Word.TRAIN, 0, LONG))
    assert await waits(looking)
    standing = asyncio.create_task(control.next_order(1, 1, end(1)))
    assert (await looking).ends == {1: end(1)}
    again = asyncio.create_task(control.look(1, Word.TRAIN, 1, LONG))
    assert await waits(again)
    others = asyncio.create_task(control.next_order(1, 1, end(0)))
    assert set((await again).ends) == {0, 1}
    assert await waits(standing) and await waits(others)
    for each in (standing, others):
        each.cancel()


@in_a_loop
async def test_only_the_end_of_an_attempt_ends_its_ranks(control):
    told = asyncio.create_task(control.told_to_end(1))
    await control.look(1, Word.STOP, 0, AT_ONCE)
    assert await waits(told)
    await control.look(1, Word.END, 0, AT_ONCE)
    await told
    later = asyncio.create_task(control.told_to_end(2))
    await control.look(1, Word.END, 0, AT_ONCE)
    assert await waits(later)
    await control.exchange(3, beat())  # an attempt that was outlived
    await later


@in_a_loop
async def test_keepers_that_stand_by_get_the_next_order_of_their_crew_and_no_other(control):
    standing = [asyncio.create_task(control.next_order(1, 1, end(rank))) for rank in (0, 1)]
    for another in (order(attempt=2, crew=2), order(attempt=1)):  # done already, and said again
        await control.give(another)
        for each in standing:
            assert await waits(each)
    await control.give(order(attempt=3))
    assert [await each for each in standing] == [order(attempt=3)] * 2
    assert await control.next_order(1, 2, end()) == order(attempt=3)  # it comes late
    assert (await control.look(3, Word.TRAIN, 0, AT_ONCE)).ends == {}


@in_a_loop
async def test_a_dismissed_crew_goes_and_a_newer_one_stays(control):
    old = asyncio.create_task(control.next_order(1, 1, end()))
    new = asyncio.create_task(control.next_order(4, 4, end()))
    await control.dismiss(3)
    assert await old is None
    assert await waits(new)
    await control.dismiss(4)
    await control.dismiss(1)
    assert await new is None
    assert await control.next_order(4, 5, end()) is None


@in_a_loop
async def test_one_that_was_started_again_learns_all_from_those_who_ask(lost):
    standing = [asyncio.create_task(lost.next_order(1, 1, end(rank))) for rank in (0, 1)]
    assert len((await lost.look(1, Word.END, 1, LONG)).ends) == 2
    control = Control()
    for each in standing:
        each.cancel()
    standing = [asyncio.create_task(control.next_order(1, 1, end(rank))) for rank in (0, 1)]
    assert len((await control.look(1, Word.END, 1, LONG)).ends) == 2
    await control.give(order())
    assert [await each for each in standing] == [order()] * 2
