import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainrig.tokens.batches import (
    BatchSizes,
    MicroBatchSlot,
    assign_micro_batches,
    virtual_workers,
)


def deal(count, rank, world):
    """(micro-batch, whether real) of each turn of worker `rank`, its own virtual worker."""
    return [(slot.index, slot.real) for slot in assign_micro_batches(count, world, rank, world)]


def test_five_micro_batches_for_two_and_three_workers_by_hand():
    assert deal(5, 0, 2) == [(0, True), (1, True), (0, False)]
    assert deal(5, 1, 2) == [(2, True), (3, True), (4, True)]
    assert deal(5, 0, 3) == [(0, True), (0, False)]
    assert deal(5, 1, 3) == [(1, True), (2, True)]
    assert deal(5, 2, 3) == [(3, True), (4, True)]


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("micro_batches", [1, 2, 5, 8, 12])
def test_the_workers_together_have_the_batch_once_in_as_many_rounds_each(micro_batches, world):
    assigned = [deal(micro_batches, rank, world) for rank in range(world)]
    real = [number for one in assigned for number, is_real in one if is_real]
    assert real == list(range(micro_batches))
    assert {len(one) for one in assigned} == {-(-micro_batches // world)}


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank, world):
    with pytest.raises(ValueError, match=f"no rank {rank} among {world} workers"):
        deal(2, rank, world)


def test_a_global_batch_that_is_not_whole_micro_batches_is_refused_with_the_nearest():
    with pytest.raises(ValidationError, match=r"\(7 sequences\) is not a multiple .* above: 8"):
        BatchSizes(sequence_length=4, global_batch=7, micro_batch=2)


# --- virtual workers


def test_virtual_workers_by_hand():
    # Five micro-batches of three virtual workers: 0 | 1 2 | 3 4; two workers stand for 1 and 2.
    assert assign_micro_batches(5, 3, 0, 2) == [
        MicroBatchSlot(0, True, 0, closes=True),
        *[MicroBatchSlot(0, False, 0, closes=False)] * 3,
    ]
    assert assign_micro_batches(5, 3, 1, 2) == [
        MicroBatchSlot(1, True, 1, closes=False),
        MicroBatchSlot(2, True, 1, closes=True),
        MicroBatchSlot(3, True, 2, closes=False),
        MicroBatchSlot(4, True, 2, closes=True),
    ]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12))
def test_who_has_a_micro_batch_virtually_does_not_depend_on_the_workers(count, virtual, world):
    virtual = min(virtual, count)
    slots = [assign_micro_batches(count, virtual, rank, world) for rank in range(world)]
    real = [slot for each in slots for slot in each if slot.real]
    assert real == assign_micro_batches(count, virtual, 0, 1)
    assert [slot.index for slot in real] == list(range(count))
    assert [slot.virtual for slot in real if slot.closes] == list(range(virtual))
    assert len({len(each) for each in slots}) == 1  # all join every collective
    for rank, each in enumerate(slots):
        own = range(*virtual_workers(virtual, rank, world))
        assert {slot.virtual for slot in each if slot.real} == set(own)
