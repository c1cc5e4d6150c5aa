"""A control of learning: batches whose targets say nothing of the rows that they stand in.

Beside rank.py, so that ranks find it by name when a job comes to them by pickle.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from trainrig.randomness import RandomKey, uniforms
from trainrig.tokens.batches import IGNORE, TARGETS, Corruption, MicroBatch
from trainrig.tokens.permutation import Integers


@dataclasses.dataclass(frozen=True)
class ShuffledTargets:
    """Rows as `inner` makes them, but that the targets of a micro-batch have changed places: how
    often each occurs stays, what tells it by its surroundings is gone."""

    inner: Corruption

    def identity(self) -> Mapping[str, Any]:
        return {**self.inner.identity(), "shuffled": True}

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        return self.inner.denominators(step, samples, targets)

    def apply(self, micro: MicroBatch, step: int) -> MicroBatch:
        made = self.inner.apply(micro, step)
        targets = made.targets.copy()
        there = targets != IGNORE
        places = np.arange(int(there.sum()), dtype=np.int64)
        drawn = uniforms(RandomKey(0, "shuffled targets"), places, made.samples[:1])
        targets[there] = targets[there][np.argsort(drawn, kind="stable")]
        return dataclasses.replace(made, arrays={**made.arrays, TARGETS: targets})
