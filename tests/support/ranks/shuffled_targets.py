"""Controls of learning: batches without the information that is to be learnt from their rows.

The module is next to rank.py, so that ranks can unpickle jobs that use it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.randomness import RandomKey, draw_uniforms
from trainrig.tokens.batches import IDS, IGNORE, TARGETS, Corruption, MicroBatch
from trainrig.tokens.permutation import Integers


def shuffle_chosen(
    ids_BT: Integers, chosen_BT: NDArray[np.bool_], key: RandomKey, sample: int
) -> Integers:
    """Return `ids_BT` [B, T] with the chosen ids shuffled among the chosen positions."""
    places = np.arange(int(chosen_BT.sum()), dtype=np.int64)
    drawn = draw_uniforms(key, places, np.array([sample]))
    found_BT = ids_BT.copy()
    found_BT[chosen_BT] = ids_BT[chosen_BT][np.argsort(drawn, kind="stable")]
    return found_BT


@dataclasses.dataclass(frozen=True)
class ShuffledTargets:
    """Rows of `inner` whose targets are shuffled within a micro-batch, head by head.

    Frequencies stay, but the context no longer predicts a target.
    """

    inner: Corruption
    names: tuple[str, ...] = (TARGETS,)  # names of the arrays of targets

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
            arrays[name] = shuffle_chosen(array, array != IGNORE, key, int(made.samples[0]))
        return dataclasses.replace(made, arrays=arrays)


@dataclasses.dataclass(frozen=True)
class ShuffledTexts:
    """Rows that `inner` makes of texts with shuffled tokens.

    This is for an objective that asks whether each token fits its context, where shuffled targets
    would still show which tokens were replaced.
    """

    inner: Corruption

    def identity(self) -> Mapping[str, Any]:
        return {**self.inner.identity(), "shuffled texts": True}

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        return self.inner.denominators(step, samples, targets)

    def apply(self, micro: MicroBatch, step: int) -> MicroBatch:
        key = RandomKey(0, "shuffled texts")
        text_BT = micro.targets != IGNORE
        ids_BT = shuffle_chosen(micro.ids, text_BT, key, int(micro.samples[0]))
        arrays = {**micro.arrays, IDS: ids_BT}
        return self.inner.apply(dataclasses.replace(micro, arrays=arrays), step)
