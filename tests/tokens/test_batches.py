import pytest
from pydantic import ValidationError

from trainrig.tokens.batches import BatchSizes, deal


def test_five_micro_batches_for_two_and_three_workers_by_hand():
    assert deal(5, 0, 2) == [(0, True), (1, True), (0, False)]
    assert deal(5, 1, 2) == [(2, True), (3, True), (4, True)]
    assert deal(5, 0, 3) == [(0, True), (0, False)]
    assert deal(5, 1, 3) == [(1, True), (2, True)]
    assert deal(5, 2, 3) == [(3, True), (4, True)]


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("micro_batches", [1, 2, 5, 8, 12])
def test_the_workers_together_have_the_batch_once_in_as_many_rounds_each(micro_batches, world):
    dealt = [deal(micro_batches, rank, world) for rank in range(world)]
    real = [number for one in dealt for number, is_real in one if is_real]
    assert real == list(range(micro_batches))
    assert {len(one) for one in dealt} == {-(-micro_batches // world)}


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank, world):
    with pytest.raises(ValueError, match=f"no rank {rank} among {world} workers"):
        deal(2, rank, world)


def test_a_global_batch_that_is_not_whole_micro_batches_is_refused_with_the_nearest():
    with pytest.raises(ValidationError, match=r"\(7 sequences\) is not a multiple .* above: 8"):
        BatchSizes(sequence_length=4, global_batch=7, micro_batch=2)
