"""What an objective is to the training step: named terms, each a sum with a denominator of its own.

The loss of a global batch is the sum over terms of weight x (sum of the term over all rows) /
(denominator of the whole global batch), and of the auxiliary terms of the model, each the mean over
micro-batches. A denominator is known from the batch before any forward pass, so each micro-batch
goes backward by itself and the gradient is that of the whole, however micro-batches are dealt to
workers.

Step, held-out evaluation and metrics know this module alone. A new objective is one file with one
class and one name in the union of `trainrig.objectives`.

Shapes: B rows of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from trainrig.on_host import remember_copy
from trainrig.tokens.batches import IGNORE, POSITIONS, TARGETS, Corruption, MicroBatch
from trainrig.tokens.encoding.encode import Encoder

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    import torch
    from torch import Tensor, nn


@dataclass(frozen=True)
class Term:
    """One named part of the loss."""

    name: str
    per: str  # name of its denominator among those of the batches
    weight: float = 1.0


@dataclass(frozen=True)
class RowParts:
    """Which part of the same rows this rank has, where several share them, and what they have
    together."""

    positions_BT: Tensor  # place in its whole row of each that this rank has, ascending
    # [c, …] what each of the c ranks has […], in their order, for all to come to the same of it:
    # backward, each goes on from the gradient of its own. Collective, forward alone.
    gather: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class DeviceBatch:
    """A micro-batch on the device of the model."""

    arrays: Mapping[str, Tensor]
    samples_B: Tensor  # global sample numbers: the keys of whatever is drawn at random
    sources_B: Tensor
    # The other models of the run by name: a frozen reference, say, or a critic that is trained too.
    models: Mapping[str, nn.Module] = field(default_factory=dict)
    parts: RowParts | None = None  # None: rows are whole
    # Whether all places are known to have targets; else finding them waits for the device.
    all_targets: bool = False

    @classmethod
    def copy(
        cls,
        micro: MicroBatch,
        device: torch.device,
        models: Mapping[str, nn.Module] | None = None,
    ) -> DeviceBatch:
        """`micro` on `device`, beside `models`.

        Copies to a GPU are queued behind its work: from memory that the driver keeps in place, and
        torch keeps until the copy is done, so nobody waits for it.
        """
        from torch import from_numpy

        def move(array: NDArray[Any]) -> Tensor:
            tensor = from_numpy(array)
            if device.type == "cuda":
                return tensor.pin_memory().to(device, non_blocking=True)
            return tensor.to(device)

        arrays = {name: move(array) for name, array in micro.arrays.items()}
        if POSITIONS in arrays and device.type != "cpu":
            remember_copy(arrays[POSITIONS], from_numpy(micro.arrays[POSITIONS]))
        targets = micro.arrays.get(TARGETS)
        return cls(
            arrays,
            move(micro.samples),
            move(micro.sources),
            models or {},
            all_targets=targets is not None and bool((targets != IGNORE).all()),
        )


@dataclass(frozen=True)
class Contributions:
    """What the rows of a micro-batch add to one term."""

    values: Tensor  # [B, …] float32; their sum is differentiated
    counts_B: Tensor  # [B] what each row adds to the term's denominator

    def sum_rows_B(self) -> Tensor:
        """[B] sum of each row, float64, without a gradient."""
        values = self.values.detach().double()
        if not len(values):
            return values.new_zeros(0)
        return values.reshape(len(values), -1).sum(1)


@dataclass(frozen=True)
class Computed:
    """The terms of one micro-batch, and the model's own auxiliary terms."""

    terms: Mapping[str, Contributions]
    # Weighted scalars to add to the loss; vectors are whole numbers that are only added up.
    auxiliary: Mapping[str, Tensor] = field(default_factory=dict)
    # What is only looked at, by name: no part of the loss. Each is a mean, of the sums of its
    # values over its counts in the whole global batch; all micro-batches have the same names.
    diagnostics: Mapping[str, Contributions] = field(default_factory=dict)
    # Whether these are of whole rows, and all ranks that have parts of them came to the same: then
    # one of them counts. Else each counts what its parts add.
    alike: bool = False


def average_rows(**values_B: Tensor) -> dict[str, Contributions]:
    """Diagnostics that are means over rows, of [B] values each."""
    import torch

    return {
        name: Contributions(each_B.detach(), torch.ones_like(each_B, dtype=torch.int64))
        for name, each_B in values_B.items()
    }


class OutputHead(Protocol):
    """What makes logits of hidden states: a product with a weight, and a bound."""

    @property
    def weight_VC(self) -> Tensor:
        """[V, C]."""
        ...

    @property
    def bias_V(self) -> Tensor | None:
        """[V] is added to each product."""
        ...

    @property
    def soft_cap(self) -> float | None:
        """Logits x become cap * tanh(x / cap); None: as they are."""
        ...

    @property
    def multiplier(self) -> float:
        """Of logits, before they are capped."""
        ...

    def __call__(self, hidden: Tensor) -> Tensor:
        """[..., C] to [..., V]."""
        ...


class Output(Protocol):
    """What a model returns."""

    @property
    def hidden(self) -> Tensor:
        """[B, T, C], of which `head` makes logits."""
        ...

    @property
    def head(self) -> OutputHead:
        """The last product, left to whoever needs logits: a loss, of some rows at a time."""
        ...

    @property
    def logits(self) -> Tensor:
        """[B, T, V]."""
        ...

    @property
    def auxiliary(self) -> Mapping[str, Tensor]:
        """Weighted scalars to add to the loss (load balance of experts, say), by name; vectors
        are counts (tokens of each expert) that are no part of it."""
        ...


class Objective(Protocol):
    """What training makes small."""

    @property
    def kind(self) -> str:
        """Its name in a run file."""
        ...

    @property
    def terms(self) -> Sequence[Term]:
        """The terms of the loss, in a fixed order."""
        ...

    @property
    def statistics(self) -> Sequence[str]:
        """Names of the sums over the global batch that `compute` needs; none for most. For them,
        all micro-batches take a first forward pass without gradients."""
        ...

    def measure(self, model: nn.Module, batch: DeviceBatch) -> Mapping[str, Tensor]:
        """What a micro-batch adds to each of `statistics`, scalars; of rows that ranks have parts
        of, on each what the whole ones add. Runs without gradients."""
        ...

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """The terms of one micro-batch."""
        ...


@runtime_checkable
class ReadingIds(Protocol):
    """An objective whose model reads other rows of a batch than IDS, all by one forward pass."""

    def read_ids(self, batch: DeviceBatch) -> Tensor:
        """[R, T] those, for stages of a model that come before the one which `compute` calls."""
        ...


@runtime_checkable
class Watchful(Protocol):
    """An objective that knows from its diagnostics when a run goes wrong in its own way."""

    def find_warning(self, diagnostics: Mapping[str, float]) -> str | None:
        """What goes wrong and what to do, in one line, by the means of `diagnostics` over the
        newest steps; None: nothing does."""
        ...


@runtime_checkable
class Deriving(Protocol):
    """An objective some of whose diagnostics follow from others over the whole global batch."""

    def derive(self, diagnostics: Mapping[str, float]) -> Mapping[str, float]:
        """Those, by name, from the means of the others."""
        ...


@runtime_checkable
class Carrying(Protocol):
    """An objective with numbers that go on from batch to batch of online ones: the weight of a
    divergence, say. They are in every checkpoint; a `BatchMaker` has them as `carried`."""

    def begin_carried(self) -> Mapping[str, float]:
        """Those of the first batch, by name."""
        ...

    def carry(
        self,
        carried: Mapping[str, float],
        diagnostics: Mapping[str, float],
        denominators: Mapping[str, int],
    ) -> Mapping[str, float]:
        """Those of the next batch, by those of this one and by what the global batch of its last
        update was like."""
        ...


@runtime_checkable
class Corrupting(Protocol):
    """An objective that is trained on other rows than next-token prediction is."""

    def make_corruption(self, encoder: Encoder) -> Corruption:
        """What it makes of rows of the ids of `encoder`.

        Raises DataError if that lacks a token that is needed for it.
        """
        ...


@runtime_checkable
class LengthLimited(Protocol):
    """A corruption that needs more of a tokenizer the longer rows are."""

    def check_length(self, longest: int) -> None:
        """Raise DataError if rows of `longest` positions are too long for it."""
        ...


@runtime_checkable
class Mixed(Protocol):
    """An objective whose samples are each of one of several."""

    def parts(self) -> tuple[tuple[float, Any], ...]:
        """The objectives that samples are dealt to, each with its share of them."""
        ...


def find_parts(objective: object) -> tuple[tuple[float, Any], ...]:
    """The objectives that samples of `objective` are dealt to, each with its share of them: itself,
    with all, unless it is a mixture."""
    return objective.parts() if isinstance(objective, Mixed) else ((1.0, objective),)


def find_corruption(objective: object, encoder: Encoder, longest: int) -> Corruption | None:
    """What `objective` makes of rows of at most `longest` positions; None: it leaves them as they
    are. Raises DataError."""
    if not isinstance(objective, Corrupting):
        return None
    corruption = objective.make_corruption(encoder)
    if isinstance(corruption, LengthLimited):
        corruption.check_length(longest)
    return corruption


def compute_differentiable_loss(
    objective: Objective,
    computed: Computed,
    denominators: Mapping[str, int],
    micro_batches: int,
) -> Tensor:
    """The share of one micro-batch in the loss of a global batch of `micro_batches`: a scalar."""
    parts = [
        computed.terms[term.name].values.sum() * (term.weight / denominators[term.per])
        for term in objective.terms
    ]
    added = [value for value in computed.auxiliary.values() if value.ndim == 0]
    parts += [value * (1 / micro_batches) for value in added]
    return sum(parts[1:], start=parts[0])
