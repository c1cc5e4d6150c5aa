"""Peak memory of training steps of 124M parameters, measured in this process.

    python step_memory_process.py transformers|VIRTUAL

This is a script, because only a fresh process shows what a step needs. It prints a line of JSON as
tuning_memory.py does. A step is 4 micro-batches of one row of 256 tokens. trainrig's step has
VIRTUAL virtual workers.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta

import numpy as np
from benchmarks.tuning_memory import measure

ROWS = 4
LENGTH = 256
STEPS = 3
SIZES = {"layers": 12, "channels": 768, "heads": 12, "vocabulary": 50_304, "positions": LENGTH}


def draw_rows() -> tuple[np.ndarray, np.ndarray]:
    """Return token ids and their targets, both [ROWS, LENGTH]."""
    ids = np.random.default_rng(0).integers(0, SIZES["vocabulary"], (ROWS, LENGTH + 1))
    return ids[:, :-1].copy(), ids[:, 1:].copy()


def prepare_ours(virtual: int) -> Callable[[], None]:
    """Return a function that takes deterministic trainrig steps from fresh weights."""
    import torch._inductor  # noqa: F401  # what torch imports at a first step

    from trainrig.models.decoder import DecoderConfig
    from trainrig.optim import Constant
    from trainrig.parallel import numerics
    from trainrig.parallel.mesh import find_local_device, join_group
    from trainrig.tokens.batches import TOKENS, MicroBatch, build_token_arrays, read_local_batch
    from trainrig.train.run_file.training_settings import Training
    from trainrig.train.state import build_fresh_state
    from trainrig.train.step import Stepper
    from trainrig.train.training_job import TrainingJob

    class Rows:
        """Batches of one row per micro-batch, the same at every step."""

        def micro_batches(self, step: int) -> int:
            return ROWS

        def denominators(self, step: int) -> dict[str, int]:
            return {TOKENS: ROWS * LENGTH}

        def micro_batch(self, step: int, index: int) -> MicroBatch:
            ids, targets = (rows[index : index + 1] for rows in draw_rows())
            number = np.arange(1)
            pieces = np.zeros((0, 3), dtype=np.int64)
            return MicroBatch(build_token_arrays(ids, targets), number, number * 0, pieces)

    join_group(0, 1, f"file://{tempfile.mkdtemp()}/store", timedelta(seconds=60))
    training = Training(steps=10**6, schedule=Constant(warmup=0), virtual_workers=virtual)
    numerics.settle(1, training.deterministic)
    job = TrainingJob(
        folder="",
        model=DecoderConfig.model_validate(SIZES),
        training=training,
        make_batches=Rows,
        tokenizer="",
    )

    def work() -> None:
        state = build_fresh_state(job, find_local_device())
        stepper = Stepper(job, ("web",), state, lambda: False)
        for step in range(STEPS):
            assert stepper.take(read_local_batch(Rows(), 0, 1, step, virtual=virtual))

    return work


def prepare_transformers() -> Callable[[], None]:
    """Return a function that takes a plain loop's steps of Transformers' Llama of equal sizes."""
    import torch
    import torch._inductor
    import torch.nn.functional as F
    from support.peers import Llama

    from trainrig.models.decoder import DecoderConfig

    sizes = DecoderConfig.model_validate(SIZES)

    def work() -> None:
        model = Llama(sizes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
        ids, targets = map(torch.from_numpy, draw_rows())
        for _ in range(STEPS):
            for row in range(ROWS):
                logits = model(ids[row : row + 1]).flatten(0, 1)
                (F.cross_entropy(logits, targets[row]) / ROWS).backward()
                del logits
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return work


def main() -> None:
    import torch

    torch.set_num_threads(1)
    (side,) = sys.argv[1:]
    work = prepare_transformers() if side == "transformers" else prepare_ours(int(side))
    print(json.dumps(measure(work)), flush=True)
    os._exit(0)  # skips the exit handlers that imports registered


if __name__ == "__main__":
    main()
