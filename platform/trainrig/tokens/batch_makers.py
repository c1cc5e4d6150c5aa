"""What makes batches as a run goes on: from the weights that the step before left."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from trainrig.tokens.batches import MicroBatch

Arrays = Mapping[str, NDArray[Any]]
NONE: Arrays = MappingProxyType({})


class BatchMaker(ABC):
    """The second source of batches: each is made from the weights that the step before left, and
    stored before it is trained on (train/online_batches.py). Travels to the workers by pickle."""

    sources: Sequence[str]  # names that the `sources` of micro-batches number
    updates: int = 1  # steps that each batch is trained on, one after another
    # What the objective carries to the batch that is made now (objectives/contract.py).
    carried: Mapping[str, float] = MappingProxyType({})

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """All that its batches depend on beside the weights, as JSON has it."""

    @abstractmethod
    def micro_batches(self, number: int) -> int:
        """How many micro-batches make up batch `number` (from 0)."""

    @abstractmethod
    def make(self, model: Any, others: Mapping[str, Any], number: int, index: int) -> MicroBatch:
        """Micro-batch `index` of batch `number`, a function of these and the weights alone.

        `others`: the models beside the trained one, by name. `model` is gathered: its forward
        passes send nothing.

        Runs without gradients; every rank calls it at the same time, each for its own micro-batch,
        and has to call each of `others` as often as the rest do.
        """

    @abstractmethod
    def denominators(self, micro: MicroBatch) -> Mapping[str, int]:
        """What `micro` adds to each denominator of the batch: TOKENS and those that the objective's
        terms name."""

    def data_before(self, step: int) -> dict[str, Any]:
        """The cursor that a checkpoint holds, and what it counts: see DataHistory."""
        batch, update = divmod(step, self.updates)
        return {"online": dict(self.identity()), "batch": batch, "update": update}


class RolloutMaker(BatchMaker):
    """Batches in two parts: what is sampled, by the trainer's workers or by processes beside them
    (train/rollout_pool/), and what the workers make of it."""

    # Batches by which sampling is ahead: batch n is sampled from the weights that batch n - lag is
    # trained on from; the first ones from those of the beginning.
    lag: int = 0
    # Waves of sampling that a batch takes at most, each of as many units as it has micro-batches.
    # Above 1 all waves of a run are numbered, and a batch is what `fill` makes of those it drew.
    waves: int = 1
    # Whether a batch leaves something that the next one goes on with.
    leaves: bool = False

    @property
    def draws_waves(self) -> bool:
        """Whether a batch is made of waves: then what `begin` gives says how many and of what."""
        return self.waves > 1 or self.leaves

    @abstractmethod
    def sample(self, model: Any, number: int, index: int, asked: Arrays = NONE) -> Arrays:
        """What `model` says for micro-batch `index` of batch `number`, or of the wave of that
        number, which is `asked` that: the unit of sampling, a function of these and the weights
        alone. Runs without gradients, with `model` gathered."""

    def begin(self, number: int, left: Arrays) -> "Waves":
        """What fills batch `number` by waves; the one before left `left`."""
        return WholeWaves(self, number)

    def take_weights(self) -> None:
        """The weights of the model that `sample` gets are others than at its last call."""

    def fill(self, drawn: Sequence[Sequence[Arrays]]) -> Sequence[Arrays] | None:
        """The micro-batches, sampled, of a batch of which those waves were drawn, each with its
        units; None: another wave is to be drawn. The last wave fills any batch."""
        return drawn[0]

    @abstractmethod
    def complete(
        self, model: Any, others: Mapping[str, Any], number: int, index: int, sampled: Arrays
    ) -> MicroBatch:
        """The micro-batch that `sampled` becomes; otherwise as `make`."""

    def make(self, model: Any, others: Mapping[str, Any], number: int, index: int) -> MicroBatch:
        """See BatchMaker."""
        return self.complete(model, others, number, index, self.sample(model, number, index))


class Waves(ABC):
    """The waves of sampling of one batch, from the first to that which fills it."""

    @abstractmethod
    def next(self) -> tuple[int, Arrays]:
        """The units of the next wave, and what it is asked beside its number."""

    @abstractmethod
    def take(self, units: Sequence[Arrays]) -> None:
        """What was sampled for that wave."""

    @abstractmethod
    def find_filled(self) -> Sequence[Arrays] | None:
        """The micro-batches, sampled; None: another wave is to be drawn."""

    def list_left(self) -> Arrays:
        """What a filled batch leaves for the next."""
        return NONE


class WholeWaves(Waves):
    """Waves of which each draws what a batch has; `RolloutMaker.fill` chooses among them."""

    def __init__(self, maker: RolloutMaker, number: int) -> None:
        """Of batch `number` of `maker`."""
        self._maker, self._units = maker, maker.micro_batches(number)
        self._drawn: list[Sequence[Arrays]] = []

    def next(self) -> tuple[int, Arrays]:
        """See Waves."""
        return self._units, NONE

    def take(self, units: Sequence[Arrays]) -> None:
        """See Waves."""
        self._drawn.append(units)

    def find_filled(self) -> Sequence[Arrays] | None:
        """See Waves."""
        return self._maker.fill(self._drawn) if self._drawn else None
