"""Waits of a step for its device: a fixed number, however many micro-batches.

All positions have targets here; otherwise each micro-batch asks for their positions
(objectives/chunked_head.py). Measurements add less than a hundredth in waits, kernels and bytes of
memory traffic.

A GPU queues its work. A read of a number, or a copy to the host, waits for all of it, and the
device then waits for the host. The CPU is used to count: every call that would wait on a GPU, and
every operator that would be a kernel.
"""

from collections import Counter

import pytest
import torch
from support.step_counts import Syncs, compute_added_share, count_syncs, count_work, make_shape


def test_waiting_calls_are_counted():
    with Syncs() as syncs:
        one = torch.ones(2)
        float(one.sum())
        one.tolist()
        if one[0] > 0:
            one.cpu().numpy()
    assert sorted(syncs.found) == ["__bool__", "__float__", "cpu", "tolist"]


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_step_waits_no_more_often_for_more_micro_batches(
    deterministic, alone, make_job, tmp_path
):
    training = {"deterministic": deterministic, "metrics": {"every": 100}}
    few, many = (
        count_syncs(
            make_job(
                tmp_path / str(rows),
                training=training,
                batches={"sequence_length": 32, "global_batch": rows, "micro_batch": 2},
            )
        )
        for rows in (4, 16)
    )
    assert Counter(few) == Counter(many)


MOST = 0.01  # the most that measurement may add, by the defaults


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [1, 8])
def test_measuring_adds_less_than_a_hundredth(micro_batch, alone, make_job, tmp_path, monkeypatch):
    counts = count_work(make_job, tmp_path, monkeypatch, **make_shape(4, micro_batch))
    for what in ("kernels", "bytes", "waits"):
        assert 0 < compute_added_share(counts, what) <= MOST, what
    # The losses, and the norm, with which the noise scale is read.
    assert counts["plain"]["waits"] == counts["sampled"]["waits"] == 2
    assert counts["by layer"]["waits"] == 3
