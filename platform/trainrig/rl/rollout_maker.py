"""Interface of makers of rollouts: sampling, completing, and the waves that fill a batch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.rl.reinforcement_run_file import Rollouts
from trainrig.tokens import batches
from trainrig.tokens.batches import MicroBatch
from trainrig.train.training_job import OnlineSource

Arrays = Mapping[str, NDArray[Any]]
NO_ARRAYS: Arrays = MappingProxyType({})


class RolloutMaker(OnlineSource):
    """A maker of batches in two parts: sampling, and completion on the trainer's workers.

    Each batch is made from the weights after the step before, and stored before it is trained on
    (rl/online_batches.py). Sampling runs on the trainer's workers or in actors
    (rl/rollout_actors.py). The maker is pickled to both.
    """

    updates: int = 1  # number of consecutive steps that train on each batch
    # Number of batches by which sampling is ahead. Batch n is sampled from the weights with which
    # training on batch n - lag begins; the first `lag` batches from the initial weights.
    lag: int = 0
    # Maximum waves (rounds of sampling) for a batch; each has a unit for each of its micro-batches.
    # Above 1, the waves of a run are numbered, and `fill` makes a batch of those sampled for it.
    waves: int = 1
    # Whether a batch leaves unfinished samples that the next batch continues.
    carries_over: bool = False
    # Values that the objective carries from batch to batch, as of now
    # (objectives/objective_interface.py).
    carried: Mapping[str, float] = MappingProxyType({})

    @property
    def draws_waves(self) -> bool:
        """Return whether the `Waves` from `begin` decide how many units are sampled, and how."""
        return self.waves > 1 or self.carries_over

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Return all that the batches depend on besides the weights, as JSON values."""

    @abstractmethod
    def micro_batches(self, number: int) -> int:
        """Return the number of micro-batches in batch `number` (from 0)."""

    @abstractmethod
    def sample(self, model: Any, number: int, index: int, wave_input: Arrays = NO_ARRAYS) -> Arrays:
        """Return what `model` samples for unit `index` of batch or wave `number`.

        A unit is a micro-batch's worth of samples. `wave_input` is what `Waves.next` returned for
        the wave. The result is a function of these and the weights alone. Runs without gradients.
        The weights of `model` are gathered: its forward passes need no communication.
        """

    @abstractmethod
    def complete(
        self, model: Any, others: Mapping[str, Any], number: int, index: int, sampled: Arrays
    ) -> MicroBatch:
        """Return micro-batch `index` of batch `number`, made of `sampled`, as `sample` does.

        `others` holds the models besides the trained one, by name. Every rank calls this at the
        same time, each for its own micro-batch, and must call each of `others` as often as all
        other ranks do.
        """

    @abstractmethod
    def denominators(self, micro: MicroBatch) -> Mapping[str, int]:
        """Return what `micro` adds to each denominator of the batch.

        These are TOKENS and the denominators that the terms of the objective name.
        """

    def take_weights(self) -> None:
        """Handle a change of weights: called before `sample` gets a model with other weights."""

    def begin(self, number: int, left: Arrays) -> "Waves":
        """Return the waves of batch `number`; `left` is what the batch before left unfinished."""
        return WholeWaves(self, number)

    def fill(self, drawn: Sequence[Sequence[Arrays]]) -> Sequence[Arrays] | None:
        """Choose the sampled micro-batches of a batch from the waves in `drawn` (lists of units).

        None requests another wave. The last possible wave must fill the batch.
        """
        return drawn[0]

    def data_before(self, step: int) -> dict[str, Any]:
        """Return the cursor for the checkpoint and what it counts, as in `DataHistory`."""
        batch, update = divmod(step, self.updates)
        return {"online": dict(self.identity()), "batch": batch, "update": update}


class Waves(ABC):
    """The waves of sampling for one batch, from the first to the one that fills it."""

    @abstractmethod
    def next(self) -> tuple[int, Arrays]:
        """Return the number of units of the next wave, and the input for sampling them."""

    @abstractmethod
    def take(self, units: Sequence[Arrays]) -> None:
        """Receive the samples of the wave that `next` described."""

    @abstractmethod
    def find_filled(self) -> Sequence[Arrays] | None:
        """Return the sampled micro-batches of the batch, or None to request another wave."""

    def list_left(self) -> Arrays:
        """Return what a filled batch leaves for the next batch to continue."""
        return NO_ARRAYS


class WholeWaves(Waves):
    """Waves of a full batch each, from which `RolloutMaker.fill` chooses."""

    def __init__(self, maker: RolloutMaker, number: int) -> None:
        """Prepare the waves of batch `number` of `maker`."""
        self._maker = maker
        self._units = maker.micro_batches(number)
        self._drawn: list[Sequence[Arrays]] = []

    def next(self) -> tuple[int, Arrays]:
        """Return (number of micro-batches in the batch, no input) for each wave."""
        return self._units, NO_ARRAYS

    def take(self, units: Sequence[Arrays]) -> None:
        """Add the samples of the wave."""
        self._drawn.append(units)

    def find_filled(self) -> Sequence[Arrays] | None:
        """Return what `RolloutMaker.fill` chooses from the waves so far, or None."""
        return self._maker.fill(self._drawn) if self._drawn else None


# Names of arrays that sampled units have and finished micro-batches lack.
TOTALS = "totals"  # [G, S] float64 weighted total rewards
PROMPTS = "prompts"  # [B] row numbers of the prompts


def fill_batch(
    drawn: Sequence[Sequence[Arrays]], wanted: Rollouts, padding: int
) -> list[Arrays] | None:
    """Build the micro-batches of the first `wanted.prompts` groups that are not flat.

    A group is flat if all its completions have the same reward. Groups stay in the order in which
    they were drawn. Returns None if there are too few and another wave may be drawn; after the last
    wave, the first flat groups fill the batch. `padding` is the token id that pads rows.
    """
    groups = [
        (unit, group)
        for wave in drawn
        for unit in wave
        for group in range(len(unit[batches.IDS]) // wanted.samples)
    ]
    flat = [bool(unit[batches.FLAT][group * wanted.samples]) for unit, group in groups]
    if flat.count(False) < wanted.prompts and len(drawn) < wanted.waves:
        return None
    # The sort is stable, so it keeps the order of drawing.
    by_use = sorted(range(len(groups)), key=flat.__getitem__)
    kept = sorted(by_use[: wanted.prompts])
    size = wanted.micro_batch // wanted.samples  # groups of a micro-batch
    return [
        _join([groups[n] for n in kept[begin : begin + size]], wanted.samples, padding, len(drawn))
        for begin in range(0, len(kept), size)
    ]


def _join(
    groups: Sequence[tuple[Arrays, int]], samples: int, padding: int, waves: int
) -> dict[str, NDArray[Any]]:
    """Concatenate the arrays of `groups`, trimmed to the longest of their rows."""
    cut = [
        {
            name: array[group : group + 1] if name == TOTALS else array[rows]
            for name, array in unit.items()
        }
        for unit, group in groups
        for rows in [slice(group * samples, (group + 1) * samples)]
    ]
    fillers = {batches.IDS: padding, batches.TARGETS: batches.IGNORE, batches.SAMPLED: 0}
    width = max(
        int((unit[batches.TARGETS] != batches.IGNORE).any(0).nonzero()[0].max(initial=0))
        for unit in cut
    )
    joined: dict[str, NDArray[Any]] = {}
    for name in cut[0]:
        arrays = [unit[name] for unit in cut]
        if name in fillers:
            arrays = [set_width(array, width + 1, fillers[name]) for array in arrays]
        joined[name] = np.concatenate(arrays)
    joined[batches.WAVES] = np.full(len(joined[batches.IDS]), waves, dtype=np.float32)
    return joined


def set_width(array_BT: NDArray[Any], width: int, filler: int) -> NDArray[Any]:
    """Return the array cut, or padded with `filler` at the end of each row, to `width`."""
    missing = max(0, width - array_BT.shape[1])
    return np.pad(array_BT[:, :width], ((0, 0), (0, missing)), constant_values=filler)
