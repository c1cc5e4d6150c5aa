"""The coordinator, in one event loop: waiting calls, and repeated messages after a loss."""

import asyncio

import pytest

from trainrig.processes.heartbeats import Heartbeat
from trainrig.train.elastic.coordinator import Assignment, Command, Coordinator, RankExit

AT_ONCE = 0.0
LONG = 10.0  # s: never reached if the code works


def make_heartbeat(rank=0, step=1):
    return Heartbeat(rank, (), f"node{rank}", step, step, "train")


def end(rank=0):
    return RankExit(rank, f"node{rank}", "killed by SIGKILL", "" if rank else "tcp://node0:1")


def make_assignment(attempt=2, group=1):
    return Assignment(group, attempt, b"work", "tcp://node0:1")


def run_in_loop(test):
    """Return `test` as a coroutine in a new event loop, with a coordinator."""

    def run():
        async def bounded():
            async with asyncio.timeout(LONG):
                await test(Coordinator())

        asyncio.run(bounded())

    run.__name__ = test.__name__
    return run


async def is_waiting(task):
    """Return whether `task` still waits after all other tasks have run as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)
    return not task.done()


@run_in_loop
async def test_beats_are_looked_at_without_waiting_for_more(coordinator):
    assert not await coordinator.record_heartbeat(1, make_heartbeat(0, step=3))
    assert not await coordinator.record_heartbeat(1, make_heartbeat(0, step=4))
    assert not await coordinator.record_heartbeat(1, make_heartbeat(1))
    seen = await coordinator.poll(1, Command.TRAIN, 0, AT_ONCE)
    assert {rank: beat.step for rank, beat in seen.heartbeats.items()} == {0: 4, 1: 1}
    assert seen.exits == {}


@pytest.mark.parametrize("command", [Command.STOP, Command.END])
def test_a_word_reaches_the_ranks_with_their_next_beats(command):
    @run_in_loop
    async def told(coordinator):
        await coordinator.poll(1, command, 0, AT_ONCE)
        assert await coordinator.record_heartbeat(1, make_heartbeat())
        await coordinator.poll(1, Command.TRAIN, 0, AT_ONCE)
        assert not await coordinator.record_heartbeat(1, make_heartbeat())

    told()


@run_in_loop
async def test_an_outlived_rank_should_stop_and_is_not_looked_at(coordinator):
    await coordinator.record_heartbeat(1, make_heartbeat())
    assert not await coordinator.record_heartbeat(2, make_heartbeat(1))
    assert await coordinator.record_heartbeat(1, make_heartbeat())
    assert (await coordinator.poll(2, Command.TRAIN, 0, AT_ONCE)).heartbeats == {
        1: make_heartbeat(1)
    }
    assert (await coordinator.poll(1, Command.END, 0, LONG)).heartbeats == {}
    # An outlived rank's stop request does not reach the ranks of a later attempt either.
    assert not await coordinator.record_heartbeat(2, make_heartbeat())


@run_in_loop
async def test_a_look_returns_as_soon_as_another_rank_has_ended(coordinator):
    looking = asyncio.create_task(coordinator.poll(1, Command.TRAIN, 0, LONG))
    assert await is_waiting(looking)
    standing = asyncio.create_task(coordinator.wait_for_assignment(1, 1, end(1)))
    assert (await looking).exits == {1: end(1)}
    again = asyncio.create_task(coordinator.poll(1, Command.TRAIN, 1, LONG))
    assert await is_waiting(again)
    others = asyncio.create_task(coordinator.wait_for_assignment(1, 1, end(0)))
    assert set((await again).exits) == {0, 1}
    assert await is_waiting(standing) and await is_waiting(others)
    for task in (standing, others):
        task.cancel()


@run_in_loop
async def test_only_the_end_of_an_attempt_ends_its_ranks(coordinator):
    told = asyncio.create_task(coordinator.wait_for_end(1))
    await coordinator.poll(1, Command.STOP, 0, AT_ONCE)
    assert await is_waiting(told)
    await coordinator.poll(1, Command.END, 0, AT_ONCE)
    await told
    later = asyncio.create_task(coordinator.wait_for_end(2))
    await coordinator.poll(1, Command.END, 0, AT_ONCE)
    assert await is_waiting(later)
    await coordinator.record_heartbeat(3, make_heartbeat())  # an earlier attempt
    await later


@run_in_loop
async def test_keepers_that_stand_by_get_the_next_order_of_their_crew_and_no_other(coordinator):
    standing = [
        asyncio.create_task(coordinator.wait_for_assignment(1, 1, end(rank))) for rank in (0, 1)
    ]
    # finished already, and reported again
    for another in (make_assignment(attempt=2, group=2), make_assignment(attempt=1)):
        await coordinator.assign(another)
        for task in standing:
            assert await is_waiting(task)
    await coordinator.assign(make_assignment(attempt=3))
    assert [await task for task in standing] == [make_assignment(attempt=3)] * 2
    assert await coordinator.wait_for_assignment(1, 2, end()) == make_assignment(attempt=3)  # late
    assert (await coordinator.poll(3, Command.TRAIN, 0, AT_ONCE)).exits == {}


@run_in_loop
async def test_a_dismissed_crew_goes_and_a_newer_one_stays(coordinator):
    old = asyncio.create_task(coordinator.wait_for_assignment(1, 1, end()))
    new = asyncio.create_task(coordinator.wait_for_assignment(4, 4, end()))
    await coordinator.release_agents(3)
    assert await old is None
    assert await is_waiting(new)
    await coordinator.release_agents(4)
    await coordinator.release_agents(1)
    assert await new is None
    assert await coordinator.wait_for_assignment(4, 5, end()) is None


@run_in_loop
async def test_a_restarted_coordinator_learns_its_state_from_clients(lost):
    standing = [asyncio.create_task(lost.wait_for_assignment(1, 1, end(rank))) for rank in (0, 1)]
    assert len((await lost.poll(1, Command.END, 1, LONG)).exits) == 2
    coordinator = Coordinator()
    for task in standing:
        task.cancel()
    standing = [
        asyncio.create_task(coordinator.wait_for_assignment(1, 1, end(rank))) for rank in (0, 1)
    ]
    assert len((await coordinator.poll(1, Command.END, 1, LONG)).exits) == 2
    await coordinator.assign(make_assignment())
    assert [await task for task in standing] == [make_assignment()] * 2


@run_in_loop
async def test_ranks_that_communicate_most_are_assigned_to_one_node(coordinator):
    nodes = ["a", "b", "a", "a", "b"]  # in Ray's order
    ranks = await coordinator.assign_ranks(1, nodes, (2,))
    assert ranks == [0, 2, 1, 4, 3]
    assert (await coordinator.poll(1, Command.TRAIN, 0, AT_ONCE)).ranks == {1: ranks}
    # A later group replaces the ranks; without groups that communicate, nodes stay whole.
    assert await coordinator.assign_ranks(4, ["b", "a", "b"], ()) == [0, 2, 1]
    assert list((await coordinator.poll(4, Command.TRAIN, 0, AT_ONCE)).ranks) == [4]
