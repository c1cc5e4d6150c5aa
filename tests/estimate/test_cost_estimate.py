"""What `trainrig check` reports about workers that wait for each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.estimate.cost_estimate import (
    compute_busy_share,
    describe_busy,
    list_sizes_after_losses,
)
from trainrig.tokens.batches import assign_micro_batches


@given(
    count=st.integers(1, 40),
    virtual=st.integers(1, 12),
    workers=st.integers(1, 12),
)
def test_the_busy_share_equals_the_share_of_real_slots(count, virtual, workers):
    there = min(virtual, count)
    slots = [assign_micro_batches(count, there, rank, workers) for rank in range(workers)]
    real = sum(slot.real for row in slots for slot in row)
    assert real == count
    assert compute_busy_share(count, workers) == real / sum(len(row) for row in slots)


@pytest.mark.parametrize(
    ("workers", "least", "node", "sizes"),
    [(16, 1, 8, [16, 8]), (24, 8, 8, [24, 16, 8]), (4, 3, 1, [4, 3]), (8, 8, 8, [8])],
)
def test_a_run_loses_nodes_down_to_its_fewest_workers(workers, least, node, sizes):
    assert list_sizes_after_losses(workers, least, node) == sizes


def test_a_node_less_costs_half_with_a_micro_batch_each_and_next_to_nothing_with_many():
    assert compute_busy_share(1024, 1024) == 1
    assert compute_busy_share(1024, 1016) == pytest.approx(0.504, abs=1e-3)
    assert compute_busy_share(64 * 1024, 1016) == pytest.approx(0.992, abs=1e-3)


@pytest.mark.parametrize(
    ("batch", "micro", "sizes", "said"),
    [
        (64, 8, [8], "100% of 8 workers"),
        (64, 8, [2, 1], "100% of 2 workers, 100% of 1 worker"),
        (
            2048,
            256,
            [8, 7, 6],
            "100% of 8 workers, 57% of 7 workers, 67% of 6 workers; "
            "set batches.micro_batch = 16 for 96% or more",
        ),
        (
            8,
            1,
            [8, 7],
            "100% of 8 workers, 57% of 7 workers; no micro_batch keeps all at 95% busy: set a "
            "larger global_batch",
        ),
    ],
)
def test_the_report_names_a_micro_batch_that_keeps_all_workers_busy(batch, micro, sizes, said):
    assert describe_busy(batch, micro, sizes) == said
