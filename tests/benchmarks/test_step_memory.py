"""Estimated memory of a training step, compared with the peaks that the allocator recorded."""

import itertools
import json
import multiprocessing
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from trainrig.estimate.step_memory import estimate_step_memory
from trainrig.models.decoder import DecoderConfig, count_parameters
from trainrig.optim import Constant
from trainrig.parallel import numerics
from trainrig.parallel.mesh import find_local_device, join_group
from trainrig.tokens.batches import TOKENS, MicroBatch, build_token_arrays, read_local_batch
from trainrig.train.run_file.training_settings import Training
from trainrig.train.state import build_fresh_state
from trainrig.train.step import Stepper
from trainrig.train.training_job import TrainingJob

pytestmark = pytest.mark.bench
# The tokens are so few that weights, gradients and their sums dominate; test_memory.py has others.
LENGTH = 8
SIZES = DecoderConfig(layers=4, channels=128, heads=4, vocabulary=512, positions=LENGTH)
WAYS: Sequence[dict[str, Any]] = (
    {"virtual_workers": 8},
    {"deterministic": False},
    {"deterministic": False, "parallel": {"kind": "FSDP", "reshard": "layer"}},
    {"deterministic": False, "parallel": {"kind": "DDP"}},
)


class OneRow:
    """Batches that repeat the same row `count` times a step."""

    def __init__(self, count: int) -> None:
        ids = np.random.default_rng(0).integers(0, 512, (1, LENGTH + 1))
        number = np.arange(1)
        pieces = np.zeros((0, 3), dtype=np.int64)
        self._batch = MicroBatch(
            build_token_arrays(ids[:, :-1].copy(), ids[:, 1:].copy()), number, number * 0, pieces
        )
        self._count = count

    def micro_batches(self, step: int) -> int:
        return self._count

    def denominators(self, step: int) -> dict[str, int]:
        return {TOKENS: self._count * LENGTH}

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        return self._batch


def run_rank(rank: int, world: int, store: str, settings: dict[str, Any], count: int) -> None:
    """Run one rank and write the peak of its second step to a file next to `store`."""
    join_group(rank, world, f"file://{store}", timedelta(seconds=120))
    training = Training(steps=10, schedule=Constant(warmup=0), **settings)
    numerics.settle(1, training.deterministic)
    batches = OneRow(count)
    job = TrainingJob(
        folder="", model=SIZES, training=training, make_batches=lambda: batches, tokenizer=""
    )
    share = read_local_batch(batches, rank, world, 0, virtual=training.virtual_workers)
    before = 0
    most = 0
    for stage in ("made", "first", "second"):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            if stage == "made":
                stepper = Stepper(
                    job, ("web",), build_fresh_state(job, find_local_device()), lambda: False
                )
            else:
                stepper.take(share)
        events = sorted(profiled.profiler.kineto_results.events(), key=lambda e: e.start_ns())
        running = before + np.cumsum([e.nbytes() for e in events if e.name() == "[memory]"])
        before = int(running[-1])
        most = int(running.max())
    if rank == 0:
        Path(f"{store}.peak").write_text(str(most))
    dist.barrier()
    dist.destroy_process_group()


def measure_peak(folder: Path, world: int, settings: dict[str, Any], count: int) -> int:
    store = str(folder / "store")
    spawn = multiprocessing.get_context("spawn")
    ranks = [
        spawn.Process(target=run_rank, args=(rank, world, store, settings, count))
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return int(Path(f"{store}.peak").read_text())


@pytest.mark.timeout(7200)  # starts 48 groups of ranks, each of which imports torch
def test_memory_equals_the_estimate(tmp_path: Path) -> None:
    errors = {}
    for world, way, compute in itertools.product((1, 2, 4), WAYS, ("float32", "bfloat16")):
        for count in (world, 8):
            settings = way | {"precision": {"compute": compute}}
            folder = tmp_path / str(len(errors))
            folder.mkdir()
            estimated = estimate_step_memory(
                SIZES, Training(steps=10, **settings), world, count, 1, LENGTH
            )
            found = measure_peak(folder, world, settings, count)
            errors[f"{world} ranks, {count} micro-batches, {settings}"] = (
                estimated.total / found - 1
            )
    worst = max(errors, key=lambda name: abs(errors[name]))
    result = {
        "benchmark": f"memory of a step reckoned, {count_parameters(SIZES).total:,} parameters",
        "steps": len(errors),
        "mean_absolute_error": round(sum(map(abs, errors.values())) / len(errors), 4),
        "worst_error": round(errors[worst], 4),
        "worst": worst,
    }
    print(json.dumps(result))
    assert abs(errors[worst]) < 0.25
