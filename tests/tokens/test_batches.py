import numpy as np
import pytest

from trainrig.tokens.batches import MicroBatch, local


def batch_of(micro_batches: int) -> tuple[MicroBatch, ...]:
    nothing = np.zeros((1, 1), dtype=np.int64)
    return tuple(MicroBatch(nothing, nothing, np.array([n])) for n in range(micro_batches))


def numbers(dealt: list[tuple[MicroBatch, bool]]) -> list[tuple[int, bool]]:
    return [(int(micro_batch.samples[0]), real) for micro_batch, real in dealt]


def test_five_micro_batches_for_two_and_three_workers_by_hand():
    batch = batch_of(5)
    assert numbers(local(batch, 0, 2)) == [(0, True), (1, True), (0, False)]
    assert numbers(local(batch, 1, 2)) == [(2, True), (3, True), (4, True)]
    assert numbers(local(batch, 0, 3)) == [(0, True), (0, False)]
    assert numbers(local(batch, 1, 3)) == [(1, True), (2, True)]
    assert numbers(local(batch, 2, 3)) == [(3, True), (4, True)]


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("micro_batches", [1, 2, 5, 8, 12])
def test_the_workers_together_have_the_batch_once_in_as_many_rounds_each(micro_batches, world):
    dealt = [numbers(local(batch_of(micro_batches), rank, world)) for rank in range(world)]
    real = [number for one in dealt for number, is_real in one if is_real]
    assert real == list(range(micro_batches))
    assert {len(one) for one in dealt} == {-(-micro_batches // world)}


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank, world):
    with pytest.raises(ValueError, match=f"no rank {rank} among {world} workers"):
        local(batch_of(2), rank, world)
