"""Adapters of layers that are one matrix in Transformers, made one, and taken apart again.

Where W is W1 over W2, the changes B1 A1 and B2 A2 are together B A, of a rank that is the sum: A
is A1 over A2, and B has B1 and B2 at its diagonal. Taken apart, each part has the rows of B that
are its own, and of A those that its rows of B ask for.

Shapes: O outputs, I inputs, R rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trainrig.posttrain.peft_adapter.names import TheirLayer


@dataclass(frozen=True)
class LowRank:
    """The adapter of one matrix."""

    a_RI: Tensor
    b_OR: Tensor
    magnitude_O: Tensor | None = None  # DoRA's

    @classmethod
    def of(cls, layer: str, tensors: Mapping[str, Tensor]) -> "LowRank | None":
        """That of our `layer` among `tensors`; None: it has none."""
        if f"{layer}.lora_a" not in tensors:
            return None
        a_RI, b_OR = tensors[f"{layer}.lora_a"], tensors[f"{layer}.lora_b"]
        return cls(a_RI, b_OR, tensors.get(f"{layer}.magnitude"))

    @property
    def rank(self) -> int:
        """The rows of A."""
        return len(self.a_RI)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """By the last parts of our names."""
        found = {"lora_a": self.a_RI, "lora_b": self.b_OR}
        return found if self.magnitude_O is None else {**found, "magnitude": self.magnitude_O}

    def scale(self, factor: float) -> "LowRank":
        """The same, multiplied by `factor`."""
        return replace(self, b_OR=self.b_OR * factor)

    def pad(self, rank: int) -> "LowRank":
        """The same, of a higher `rank`: what is added is 0."""
        (outputs, own), inputs = self.b_OR.shape, self.a_RI.shape[1]
        a_RI = torch.cat([self.a_RI, self.a_RI.new_zeros(rank - own, inputs)])
        b_OR = torch.cat([self.b_OR, self.b_OR.new_zeros(outputs, rank - own)], dim=1)
        return replace(self, a_RI=a_RI, b_OR=b_OR)


def join_parts(
    layer: TheirLayer, parts: Sequence[LowRank | None], weights: Mapping[str, Tensor]
) -> LowRank:
    """The one adapter of `layer`, whose `parts` have some; `weights` by our names, of which DoRA
    has the lengths of rows of a part that has none."""
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
    """The adapter of each part of `layer` by our name, but of parts that `whole` leaves alone."""
    if len(layer.parts) == 1:
        return {layer.parts[0]: whole}
    changes = bool(whole.b_OR.any())
    found, begin = {}, 0
    for name, outputs in zip(layer.parts, layer.outputs, strict=True):
        rows = slice(begin, begin + outputs)
        begin += outputs
        b_OR = whole.b_OR[rows]
        used_R = b_OR.any(dim=0) if changes else torch.ones(whole.rank, dtype=torch.bool)
        magnitude_O = None if whole.magnitude_O is None else whole.magnitude_O[rows]
        if used_R.any() or magnitude_O is not None:
            found[name] = LowRank(whole.a_RI[used_R], b_OR[:, used_R], magnitude_O)
    return found
