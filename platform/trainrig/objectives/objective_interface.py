"""Interface of objectives to training: named loss terms, each a sum with its own denominator.

The loss of a global batch is the sum over terms of weight x (sum of the term over all rows) /
(denominator of the whole global batch), plus the auxiliary terms of the model, each averaged over
micro-batches. A denominator is known from the batch before any forward pass. Each micro-batch
therefore has its own backward pass, and the gradient is that of the whole batch, whatever the
assignment of micro-batches to workers.

Training steps, held-out evaluation and metrics depend on this module alone; what an objective
declares of itself is in objective_settings.py. A new objective is one file with one class, and one
name in a union of objective_kinds.py.

Shapes: B rows of a micro-batch.

Marks of padding positions are for models that would otherwise count them (`mark_text`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from trainrig.sync_free_reads import remember_copy
from trainrig.tokens.batches import IGNORE, POSITIONS, TARGETS, Corruption, MicroBatch

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from trainrig.tokens.tokenizers.encode import Encoder


@dataclass(frozen=True)
class Term:
    """One named part of the loss."""

    name: str
    per: str  # name of the term's denominator in the batch
    weight: float = 1.0


@dataclass(frozen=True)
class RowParts:
    """This rank's part of rows that several ranks share, and the means to combine the parts."""

    positions_BT: Tensor  # position in the whole row of each of this rank's positions, ascending
    # Gather the part […] of each of c ranks to [c, …], in order, where all ranks then compute the
    # same result. Backward, each rank keeps the gradient of the part it had. Collective in the
    # forward pass only.
    gather: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class DeviceBatch:
    """A micro-batch on the device of the model."""

    arrays: Mapping[str, Tensor]
    samples_B: Tensor  # global sample numbers: keys for all random draws
    sources_B: Tensor
    # The other models of the run by name, such as a frozen reference, or a critic that is trained
    # too.
    models: Mapping[str, nn.Module] = field(default_factory=dict)
    parts: RowParts | None = None  # None: rows are whole
    # Whether all positions are known to have targets; otherwise finding out requires a wait for the
    # device.
    all_targets: bool = False

    @classmethod
    def copy(
        cls,
        micro: MicroBatch,
        device: torch.device,
        models: Mapping[str, nn.Module] | None = None,
    ) -> DeviceBatch:
        """Copy `micro` to `device`, and attach `models`.

        Copies to a GPU are queued behind its work. They read pinned memory that torch keeps until
        the copy is done, so the host does not wait.
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
    """Values and counts that the rows of a micro-batch add to one loss term."""

    values: Tensor  # [B, …] float32; the backward pass starts from their sum
    counts_B: Tensor  # [B] contribution of each row to the term's denominator

    def sum_rows_B(self) -> Tensor:
        """Return the sum [B] of each row's values, in float64 and without a gradient."""
        values = self.values.detach().double()
        if not len(values):
            return values.new_zeros(0)
        return values.reshape(len(values), -1).sum(1)


@dataclass(frozen=True)
class Computed:
    """The loss terms of one micro-batch, and the model's own auxiliary terms."""

    terms: Mapping[str, Contributions]
    # Weighted scalars to add to the loss. Vectors are integer counts that are only summed.
    auxiliary: Mapping[str, Tensor] = field(default_factory=dict)
    # Diagnostics by name, not part of the loss. Each is a mean over the global batch: the sum of
    # values over the sum of counts. All micro-batches have the same names.
    diagnostics: Mapping[str, Contributions] = field(default_factory=dict)
    # Whether the values are for whole rows and equal on all ranks that share the rows, so that one
    # rank counts. Otherwise each rank counts what its part adds.
    alike: bool = False


def average_rows(**values_B: Tensor) -> dict[str, Contributions]:
    """Return diagnostics that are means over rows, from values [B] each."""
    import torch

    return {
        name: Contributions(row_values_B.detach(), torch.ones_like(row_values_B, dtype=torch.int64))
        for name, row_values_B in values_B.items()
    }


class OutputHead(Protocol):
    """Protocol of a head that computes logits: a product, scaling and a soft cap."""

    @property
    def weight_VC(self) -> Tensor:
        """The weight [V, C]."""
        ...

    @property
    def bias_V(self) -> Tensor | None:
        """The bias [V], or None."""
        ...

    @property
    def soft_cap(self) -> float | None:
        """The soft cap: logits x become cap * tanh(x / cap); None: logits are not capped."""
        ...

    @property
    def multiplier(self) -> float:
        """The factor of logits, before they are capped."""
        ...

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] of hidden states [..., C]."""
        ...


class Output(Protocol):
    """Protocol of a model's output."""

    @property
    def hidden(self) -> Tensor:
        """The hidden states [B, T, C], of which `head` computes logits."""
        ...

    @property
    def head(self) -> OutputHead:
        """The head, for losses that compute logits a few rows at a time."""
        ...

    @property
    def logits(self) -> Tensor:
        """The logits [B, T, V], computed when asked for."""
        ...

    @property
    def auxiliary(self) -> Mapping[str, Tensor]:
        """The auxiliary loss terms by name: weighted scalars, such as the load balance of experts.

        Vectors are counts, such as the tokens of each expert, which are not part of the loss.
        """
        ...


class Objective(Protocol):
    """Protocol of a training objective."""

    @property
    def kind(self) -> str:
        """The name of the objective in a run file."""
        ...

    @property
    def single_pass(self) -> bool:
        """True if a step is one forward and one backward pass. See `ObjectiveSettings`."""
        ...

    @property
    def terms(self) -> Sequence[Term]:
        """The terms of the loss, in a fixed order."""
        ...

    @property
    def statistics(self) -> Sequence[str]:
        """Names of the sums over the global batch that `compute` needs; empty for most objectives.

        If there are any, all micro-batches run a first forward pass without gradients.
        """
        ...

    def measure(self, model: nn.Module, batch: DeviceBatch) -> Mapping[str, Tensor]:
        """Return the contribution of a micro-batch to each of `statistics`, as scalars.

        Where ranks share rows, each rank returns the contribution of the whole rows. Runs without
        gradients.
        """
        ...

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the loss terms of one micro-batch."""
        ...


@runtime_checkable
class ReadingRows(Protocol):
    """Protocol of an objective whose model reads rows other than the batch's IDS.

    It reads all of them in one forward pass.
    """

    def read_rows(self, batch: DeviceBatch) -> tuple[Tensor, Tensor]:
        """Return the ids [R, T] and targets [R, T] of the rows that the model reads.

        For pipeline stages before the last, which do not call the objective.
        """
        ...


@runtime_checkable
class Watchful(Protocol):
    """Protocol of an objective that recognizes its own kind of failing run from its diagnostics."""

    def find_warning(self, diagnostics: Mapping[str, float]) -> str | None:
        """Return one line with the problem and what to do, or None if there is none.

        `diagnostics` are means over the latest steps.
        """
        ...


@runtime_checkable
class Deriving(Protocol):
    """Protocol of an objective that derives some diagnostics from others over the global batch."""

    def derive(self, diagnostics: Mapping[str, float]) -> Mapping[str, float]:
        """Return the derived diagnostics by name, from the means of the others."""
        ...


@runtime_checkable
class Carrying(Protocol):
    """Protocol of an objective with values that carry over between online batches.

    An example is an adaptive weight of a divergence. The values are saved in every checkpoint, as
    `carried` of a `RolloutMaker`.
    """

    def begin_carried(self) -> Mapping[str, float]:
        """Return the values for the first batch, by name."""
        ...

    def carry(
        self,
        carried: Mapping[str, float],
        diagnostics: Mapping[str, float],
        denominators: Mapping[str, int],
    ) -> Mapping[str, float]:
        """Return the values for the next batch.

        Args:
            carried: The values for the current batch.
            diagnostics: Means over the global batch of the latest update.
            denominators: Denominators of the same global batch.
        """
        ...


@runtime_checkable
class Corrupting(Protocol):
    """Protocol of an objective that does not train on the rows of next-token prediction."""

    def make_corruption(self, encoder: Encoder) -> Corruption:
        """Return the corruption to apply to rows of the ids of `encoder`.

        Raises DataError if the tokenizer lacks a special token that the corruption needs.
        """
        ...


@runtime_checkable
class LengthLimited(Protocol):
    """Protocol of a corruption that needs more special tokens for longer rows."""

    def check_length(self, longest: int) -> None:
        """Raise DataError if the tokenizer has too few tokens for rows of `longest` positions."""
        ...


def find_corruption(objective: object, encoder: Encoder, longest: int) -> Corruption | None:
    """Return the corruption of `objective` for rows of at most `longest` positions, or None.

    Raises DataError if the tokenizer lacks special tokens that the corruption needs.
    """
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
    """Return the scalar contribution of one micro-batch to the loss of its global batch.

    The global batch has `micro_batches` micro-batches, and `denominators` for its terms.
    """
    parts = [
        computed.terms[term.name].values.sum() * (term.weight / denominators[term.per])
        for term in objective.terms
    ]
    added = [value for value in computed.auxiliary.values() if value.ndim == 0]
    parts += [value * (1 / micro_batches) for value in added]
    return sum(parts[1:], start=parts[0])


def mark_text(model: nn.Module, batch: DeviceBatch) -> dict[str, Tensor]:
    """Return the argument `text_BT` for a mixture of experts, or no arguments for other models.

    Positions after the last target of a row count as padding, because nothing is learnt from them.
    Rows with a target at every position have no padding.
    """
    if batch.all_targets or not getattr(model, "counts_padding", False):
        return {}
    asked_BT = batch.arrays[TARGETS] != IGNORE
    return {"text_BT": asked_BT.flip(1).cumsum(1).flip(1) > 0}
