"""Number of times that a step waits for the device: run by `make gpu`."""

import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from gpu import step_table

from trainrig.parallel.mesh import join_group

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; run by `make gpu`"),
]

TWICE = 2  # waits a step: for its losses, and for its norms


def count_waits(loop, micro_batches, monkeypatch):
    """Return how often the third step waits for the device."""
    monkeypatch.setattr(step_table, "MICRO_BATCHES", micro_batches)
    row = step_table.Row("tiny", loop, compiled=False)
    step, _ = step_table.our_loop(row, step_table.SIZES["tiny"])
    step(0), step(1)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step(2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    where = [
        f"{warning.filename}:{warning.lineno}" for warning in caught if "synchroniz" in str(warning)
    ]
    print(f"{loop}, {micro_batches} micro-batches: {where}")
    return len(where)


@pytest.mark.parametrize("loop", ["fast", "deterministic"])
def test_waits_for_the_device_do_not_depend_on_micro_batches(loop, tmp_path, monkeypatch):
    join_group(0, 1, f"file://{tmp_path}/store", timedelta(seconds=60))
    try:
        assert count_waits(loop, 4, monkeypatch) == count_waits(loop, 2, monkeypatch) <= TWICE
    finally:
        dist.destroy_process_group()
        torch.use_deterministic_algorithms(False)
