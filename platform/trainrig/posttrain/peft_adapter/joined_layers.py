"""Joining of adapters whose layers are one matrix in Transformers, and splitting them again.

Where W is W1 stacked on W2, the changes B1 A1 and B2 A2 equal one change B A, whose rank is the sum
of both ranks: A is A1 stacked on A2, and B is block-diagonal in B1 and B2. A split gives each part
its own rows of B, and the rows of A that those rows of B use.

Shapes: O outputs, I inputs, R rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trainrig.posttrain.peft_adapter.names import TheirLayer


@dataclass(frozen=True)
class LowRank:
    """The low-rank adapter of one matrix."""

    a_RI: Tensor
    b_OR: Tensor
    magnitude_O: Tensor | None = None  # Row norms of DoRA; None for LoRA.

    @classmethod
    def of(cls, layer: str, tensors: Mapping[str, Tensor]) -> "LowRank | None":
        """Return the adapter of our layer `layer` in `tensors`, or None if there is none."""
        if f"{layer}.lora_a" not in tensors:
            return None
        a_RI = tensors[f"{layer}.lora_a"]
        b_OR = tensors[f"{layer}.lora_b"]
        return cls(a_RI, b_OR, tensors.get(f"{layer}.magnitude"))

    @property
    def rank(self) -> int:
        """The rank: the number of rows of A."""
        return len(self.a_RI)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by the last part of our names."""
        found = {"lora_a": self.a_RI, "lora_b": self.b_OR}
        return found if self.magnitude_O is None else {**found, "magnitude": self.magnitude_O}

    def scale(self, factor: float) -> "LowRank":
        """Return this adapter multiplied by `factor`."""
        return replace(self, b_OR=self.b_OR * factor)

    def pad(self, rank: int) -> "LowRank":
        """Return this adapter with a higher `rank`, padded with zeros."""
        (outputs, own), inputs = self.b_OR.shape, self.a_RI.shape[1]
        a_RI = torch.cat([self.a_RI, self.a_RI.new_zeros(rank - own, inputs)])
        b_OR = torch.cat([self.b_OR, self.b_OR.new_zeros(outputs, rank - own)], dim=1)
        return replace(self, a_RI=a_RI, b_OR=b_OR)


def join_parts(
    layer: TheirLayer, parts: Sequence[LowRank | None], weights: Mapping[str, Tensor]
) -> LowRank:
    """Join the adapters `parts` of one matrix into one adapter.

    At least one part has an adapter. `weights`, by our names, give DoRA the row norms of parts
    without one.
    """
    chosen = [part for part in parts if part is not None]
    if len(parts) == 1:
        return chosen[0]
    rank = sum(part.rank for part in chosen)
    b_OR = chosen[0].b_OR.new_zeros(sum(layer.outputs), rank)
    row = column = 0
    lengths = []
    for name, part, outputs in zip(layer.parts, parts, layer.outputs, strict=True):
        if part is not None:
            b_OR[row : row + outputs, column : column + part.rank] = part.b_OR
            column += part.rank
        row += outputs
        own = None if part is None else part.magnitude_O
        lengths.append(weights[f"{name}.weight"].float().norm(dim=1) if own is None else own)
    magnitude_O = None if chosen[0].magnitude_O is None else torch.cat(lengths)
    return LowRank(torch.cat([part.a_RI for part in chosen]), b_OR, magnitude_O)


def split_parts(layer: TheirLayer, whole: LowRank) -> dict[str, LowRank]:
    """Split the adapter of a matrix into one adapter for each of our layers, by our names.

    Parts that `whole` leaves unchanged are omitted.
    """
    if len(layer.parts) == 1:
        return {layer.parts[0]: whole}
    changes = bool(whole.b_OR.any())
    found = {}
    begin = 0
    for name, outputs in zip(layer.parts, layer.outputs, strict=True):
        rows = slice(begin, begin + outputs)
        begin += outputs
        b_OR = whole.b_OR[rows]
        used_R = b_OR.any(dim=0) if changes else torch.ones(whole.rank, dtype=torch.bool)
        magnitude_O = None if whole.magnitude_O is None else whole.magnitude_O[rows]
        if used_R.any() or magnitude_O is not None:
            found[name] = LowRank(whole.a_RI[used_R], b_OR[:, used_R], magnitude_O)
    return found
