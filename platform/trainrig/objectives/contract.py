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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from trainrig.tokens.batches import MicroBatch

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
class DeviceBatch:
    """A micro-batch on the device of the model."""

    arrays: Mapping[str, Tensor]
    samples_B: Tensor  # global sample numbers: the keys of whatever is drawn at random
    sources_B: Tensor

    @classmethod
    def copy(cls, micro: MicroBatch, device: torch.device) -> DeviceBatch:
        """`micro` on `device`."""
        from torch import from_numpy

        return cls(
            {name: from_numpy(array).to(device) for name, array in micro.arrays.items()},
            from_numpy(micro.samples).to(device),
            from_numpy(micro.sources).to(device),
        )


@dataclass(frozen=True)
class Contributions:
    """What the rows of a micro-batch add to one term."""

    values: Tensor  # [B, …] float32; their sum is differentiated
    counts_B: Tensor  # [B] what each row adds to the term's denominator

    def rows_B(self) -> Tensor:
        """[B] sum of each row, float64, without a gradient."""
        return self.values.detach().double().reshape(len(self.values), -1).sum(1)


@dataclass(frozen=True)
class Computed:
    """The terms of one micro-batch, and the model's own auxiliary terms."""

    terms: Mapping[str, Contributions]
    auxiliary: Mapping[str, Tensor] = field(default_factory=dict)  # weighted scalars


class Output(Protocol):
    """What a model returns."""

    @property
    def logits(self) -> Tensor:
        """[B, T, V]."""
        ...

    @property
    def auxiliary(self) -> Mapping[str, Tensor]:
        """Weighted scalars to add to the loss (load balance of experts, say), by name."""
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
        """What a micro-batch adds to each of `statistics`, scalars. Runs without gradients."""
        ...

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """The terms of one micro-batch."""
        ...


def differentiable_loss(
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
    parts += [value * (1 / micro_batches) for value in computed.auxiliary.values()]
    return sum(parts[1:], start=parts[0])
