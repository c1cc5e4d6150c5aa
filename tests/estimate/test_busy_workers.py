"""What `check` says of workers that wait for each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.estimate.busy_workers import busy_share, describe_busy, sizes_after_losses
from trainrig.tokens.batches import assign_micro_batches


@given(
    count=st.integers(1, 40),
    virtual=st.one_of(st.none(), st.integers(1, 12)),
    workers=st.integers(1, 12),
)
def test_the_share_is_that_of_real_slots(count, virtual, workers):
    there = workers if virtual is None else min(virtual, count)
    slots = [assign_micro_batches(count, there, rank, workers) for rank in range(workers)]
    real = sum(slot.real for each in slots for slot in each)
    assert real == count
    assert busy_share(count, virtual, workers) == real / sum(len(each) for each in slots)


@pytest.mark.parametrize(
    ("workers", "least", "node", "sizes"),
    [(16, 1, 8, [16, 8]), (24, 8, 8, [24, 16, 8]), (4, 3, 1, [4, 3]), (8, 8, 8, [8])],
)
def test_a_run_loses_nodes_down_to_its_fewest_workers(workers, least, node, sizes):
    assert sizes_after_losses(workers, least, node) == sizes


def test_one_worker_less_than_virtual_ones_takes_two_turns():
    assert busy_share(1024, 1024, 1024) == 1
    assert busy_share(1024, 1024, 1016) == pytest.approx(0.504, abs=1e-3)


@pytest.mark.parametrize(
    ("batch", "micro", "virtual", "sizes", "said"),
    [
        (64, 8, 8, [8], "100% of 8 workers"),
        (
            2048,
            256,
            8,
            [8, 7, 6],
            "100% of 8 workers, 57% of 7 workers, 67% of 6 workers; "
            "batches.micro_batch = 16 and training.virtual_workers = 128: 96% and more",
        ),
        (
            8,
            1,
            None,
            [8, 7],
            "100% of 8 workers, 57% of 7 workers; no micro_batch brings all to 95%: take a larger "
            "global_batch",
        ),
    ],
)
def test_it_names_the_micro_batch_that_keeps_all_at_work(batch, micro, virtual, sizes, said):
    assert describe_busy(batch, micro, virtual, sizes) == said
