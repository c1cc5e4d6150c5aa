"""Steps of the training loop on one micro-batch that repeats."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from trainrig.models.decoder import DecoderConfig
from trainrig.optim import Constant
from trainrig.parallel import numerics
from trainrig.parallel.mesh import find_local_device
from trainrig.parallel.precision import set_products
from trainrig.tokens.batches import (
    IGNORE,
    TOKENS,
    MicroBatch,
    build_token_arrays,
    read_local_batch,
)
from trainrig.train.run_file.training_settings import Training
from trainrig.train.state import build_fresh_state
from trainrig.train.step import StepFigures, Stepper
from trainrig.train.training_job import TrainingJob

SEQUENCES = 8
LENGTH = 256
VOCABULARY = 4096
SIZES = DecoderConfig(layers=6, channels=384, heads=6, vocabulary=VOCABULARY, positions=LENGTH)


def draw_micro_batch(rows: int, length: int, vocabulary: int) -> MicroBatch:
    """Return a micro-batch of random tokens."""
    ids = np.random.default_rng(0).integers(0, vocabulary, (rows, length + 1))
    samples = np.arange(rows)
    pieces = np.zeros((0, 3), dtype=np.int64)
    arrays = build_token_arrays(ids[:, :-1].copy(), ids[:, 1:].copy())
    return MicroBatch(arrays, samples, samples * 0, pieces)


class OneBatch:
    """Batches that repeat one micro-batch `count` times a step."""

    def __init__(self, micro: MicroBatch, count: int = 1) -> None:
        self._micro = micro
        self._count = count

    def micro_batches(self, step: int) -> int:
        return self._count

    def denominators(self, step: int) -> dict[str, int]:
        return {TOKENS: self._count * int((self._micro.targets != IGNORE).sum())}

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        return self._micro


def make_our_step(
    sizes: Any = SIZES,
    objective: Any = None,
    micro: MicroBatch | None = None,
    **settings: Any,
) -> Callable[[], StepFigures | None]:
    """Return a step as the training loop takes it: sharded, deterministic, clipped."""
    training = Training(steps=10**6, schedule=Constant(warmup=0), **settings)
    numerics.settle(training.threads, training.deterministic)
    set_products(training.precision)
    batch = OneBatch(micro or draw_micro_batch(SEQUENCES, LENGTH, sizes.vocabulary))
    job = TrainingJob("", sizes, training, lambda: batch, "")
    if objective is not None:
        job = dataclasses.replace(job, objective=objective)
    stepper = Stepper(job, ("web",), build_fresh_state(job, find_local_device()), lambda: False)
    share = read_local_batch(batch, 0, 1, 0, virtual=training.virtual_workers)
    return lambda: stepper.take(share)


def make_plain_step(
    model: nn.Module, compute: str, vocabulary: int = VOCABULARY
) -> Callable[[], None]:
    """Return a step of a handwritten plain loop, with torch's fused AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    batch = draw_micro_batch(SEQUENCES, LENGTH, vocabulary)
    ids = torch.from_numpy(batch.ids)
    targets = torch.from_numpy(batch.targets)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=compute == "bfloat16"):
            loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
