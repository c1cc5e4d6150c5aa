"""Controls of learning: batches that say nothing of what is to be learnt of their rows.

Beside rank.py, so that ranks find them by name when a job comes to them by pickle.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.randomness import RandomKey, draw_uniforms
from trainrig.tokens.batches import IDS, IGNORE, TARGETS, Corruption, MicroBatch
from trainrig.tokens.permutation import Integers


def shuffled(
    ids_BT: Integers, chosen_BT: NDArray[np.bool_], key: RandomKey, sample: int
) -> Integers:
    """[B, T] `ids_BT`, those that are chosen in other places of the chosen."""
    places = np.arange(int(chosen_BT.sum()), dtype=np.int64)
    drawn = draw_uniforms(key, places, np.array([sample]))
    found_BT = ids_BT.copy()
    found_BT[chosen_BT] = ids_BT[chosen_BT][np.argsort(drawn, kind="stable")]
    return found_BT


@dataclasses.dataclass(frozen=True)
class ShuffledTargets:
    """Rows as `inner` makes them, but that the targets of a micro-batch have changed places, those
    of each head among themselves: how often each occurs stays, what tells it by its surroundings is
    gone."""

    inner: Corruption
    names: tuple[str, ...] = (TARGETS,)  # of the arrays of targets

    def identity(self) -> Mapping[str, Any]:
        return {**self.inner.identity(), "shuffled": True}

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        return self.inner.denominators(step, samples, targets)

    def apply(self, micro: MicroBatch, step: int) -> MicroBatch:
        made = self.inner.apply(micro, step)
        arrays = dict(made.arrays)
        for name in self.names:
            key = RandomKey(0, f"shuffled {name}")
            array = made.arrays[name]
            arrays[name] = shuffled(array, array != IGNORE, key, int(made.samples[0]))
        return dataclasses.replace(made, arrays=arrays)


@dataclasses.dataclass(frozen=True)
class ShuffledTexts:
    """Rows as `inner` makes them of texts whose tokens have changed places: for an objective that
    asks of each token whether it fits its surroundings, where shuffled targets would still tell
    what was put in from what is of the text."""

    inner: Corruption

    def identity(self) -> Mapping[str, Any]:
        return {**self.inner.identity(), "shuffled texts": True}

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        return self.inner.denominators(step, samples, targets)

    def apply(self, micro: MicroBatch, step: int) -> MicroBatch:
        key, text_BT = RandomKey(0, "shuffled texts"), micro.targets != IGNORE
        ids_BT = shuffled(micro.ids, text_BT, key, int(micro.samples[0]))
        arrays = {**micro.arrays, IDS: ids_BT}
        return self.inner.apply(dataclasses.replace(micro, arrays=arrays), step)
