import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainrig.tokens.batches import (
    BatchSizes,
    MicroBatchSlot,
    assign_micro_batches,
    find_virtual_worker,
)


def list_slots(count, rank, world):
    """Return (micro-batch, whether real) of each slot of worker `rank`."""
    return [(slot.index, slot.real) for slot in assign_micro_batches(count, world, rank, world)]


def test_five_micro_batches_for_two_and_three_workers_by_hand():
    assert list_slots(5, 0, 2) == [(0, True), (1, True), (0, False)]
    assert list_slots(5, 1, 2) == [(2, True), (3, True), (4, True)]
    assert list_slots(5, 0, 3) == [(0, True), (0, False)]
    assert list_slots(5, 1, 3) == [(1, True), (2, True)]
    assert list_slots(5, 2, 3) == [(3, True), (4, True)]


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("micro_batches", [1, 2, 5, 8, 12])
def test_workers_cover_the_batch_once_in_equal_rounds(micro_batches, world):
    assigned = [list_slots(micro_batches, rank, world) for rank in range(world)]
    real = [number for one in assigned for number, is_real in one if is_real]
    assert real == list(range(micro_batches))
    assert {len(one) for one in assigned} == {-(-micro_batches // world)}


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank, world):
    with pytest.raises(ValueError, match=f"no rank {rank} among {world} workers"):
        list_slots(2, rank, world)


def test_a_global_batch_that_is_not_whole_micro_batches_is_refused_with_the_nearest():
    with pytest.raises(ValidationError, match=r"\(7 sequences\) is not a multiple .* above: 8"):
        BatchSizes(sequence_length=4, global_batch=7, micro_batch=2)


# --- virtual workers


def test_virtual_workers_by_hand():
    # Five micro-batches of three virtual workers are 0 | 1 2 | 3 4. Two workers have 0 1 and 2 3 4.
    assert assign_micro_batches(5, 3, 0, 2) == [
        MicroBatchSlot(0, True, 0, closes=True),
        MicroBatchSlot(1, True, 1, closes=True),  # belongs to the second virtual worker
        MicroBatchSlot(0, False, 0, closes=False),
    ]
    assert assign_micro_batches(5, 3, 1, 2) == [
        # Follows a micro-batch of the other worker, so it stays apart.
        MicroBatchSlot(2, True, 2, closes=True),
        MicroBatchSlot(3, True, 3, closes=False),
        MicroBatchSlot(4, True, 3, closes=True),
    ]


def test_workers_that_add_up_rounds_together_take_micro_batches_in_turn():
    # Two groups of two have 0 1 2 and 3 4 5 6.
    slots = [assign_micro_batches(7, 3, rank, 4, peers=2) for rank in range(4)]
    assert [[slot.index for slot in one if slot.real] for one in slots] == [
        [0, 2],
        [1],
        [3, 5],
        [4, 6],
    ]
    assert {len(one) for one in slots} == {2}
    assert all(slot.closes and slot.first == slot.index for one in slots for slot in one)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12), st.integers(1, 3))
def test_all_micro_batches_are_handed_over_once_in_as_few_rounds_as_can_be(
    count, virtual, groups, peers
):
    virtual = min(virtual, count)
    world = groups * peers
    slots = [assign_micro_batches(count, virtual, rank, world, peers) for rank in range(world)]
    assert {len(row) for row in slots} == {-(-count // world)}  # all join every collective
    real = [slot for row in slots for slot in row if slot.real]
    assert sorted(slot.index for slot in real) == list(range(count))
    handed = sorted((slot.first, slot.index + 1) for slot in real if slot.closes)
    assert [leaf for span in handed for leaf in range(*span)] == list(range(count))
    cuts = {find_virtual_worker(index, count, virtual) for index in range(count)}
    assert len(cuts) == virtual
    # A virtual worker's micro-batches, or the first ones if there are several virtual workers.
    for first, last in handed:
        begin, end = find_virtual_worker(first, count, virtual)
        assert last <= end and (last == first + 1 or first == begin)
