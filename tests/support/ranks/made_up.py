"""Synthetic batches for measurements of time or memory."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainrig.tokens.batches import TOKENS, MicroBatch, build_token_arrays


@dataclass(frozen=True)
class MadeUp:
    """Batches of random tokens, for measurements of time or memory."""

    count: int  # micro-batches of a step
    shape: tuple[int, int]  # (B, T) of each micro-batch
    vocabulary: int

    def micro_batches(self, step: int) -> int:
        return self.count

    sources = ("made up",)

    def denominators(self, step: int) -> dict[str, int]:
        return {TOKENS: self.count * math.prod(self.shape)}

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        rows, length = self.shape
        dice = np.random.default_rng((step, index))
        ids = dice.integers(0, self.vocabulary, (rows, length + 1))
        samples = (step * self.count + index) * rows + np.arange(rows)
        nought = np.zeros(rows, dtype=np.int64)
        pieces = np.zeros((0, 3), dtype=np.int64)
        return MicroBatch(
            build_token_arrays(ids[:, :-1].copy(), ids[:, 1:].copy()), samples, nought, pieces
        )

    def data_before(self, step: int) -> dict[str, Any]:
        return {}
