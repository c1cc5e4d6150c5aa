"""Joined layers of PEFT adapters, and the head modules that PEFT saves in `modules_to_save`.

Where W is W1 stacked on W2, the changes B1 A1 and B2 A2 equal one change B A, whose rank is the sum
of both ranks: A is A1 stacked on A2, and B is block-diagonal in B1 and B2. A split gives each part
its own rows of B, and the rows of A that those rows of B use.

Shapes: O outputs, I inputs, R rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from trainrig.errors import DataError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.decoder_fields import Head
from trainrig.models.architecture.lora_settings import LoRA, is_of_head
from trainrig.models.lora import is_adapter, list_adapter_shapes, merge
from trainrig.posttrain.huggingface.peft_settings import TheirLayer, find_tensors, split_key
from trainrig.train import checkpoint
from trainrig.train.checkpoint.reader import find_fresh_parameters


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

    def reorder(self, order_O: Tensor) -> "LowRank":
        """Return this adapter with its outputs in another order: first number `order_O[0]`."""
        magnitude_O = None if self.magnitude_O is None else self.magnitude_O[order_O]
        return replace(self, b_OR=self.b_OR[order_O], magnitude_O=magnitude_O)

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
    joined = _stack_parts(layer, parts, weights)
    return joined if layer.order is None else joined.reorder(torch.tensor(layer.order))


def _stack_parts(
    layer: TheirLayer, parts: Sequence[LowRank | None], weights: Mapping[str, Tensor]
) -> LowRank:
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
    if layer.order is not None:
        whole = whole.reorder(torch.tensor(layer.order).argsort())
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


# Heads that a PEFT task can mean; without a task, the first head whose tensors are there.
HEADS: Mapping[str | None, tuple[Head, ...]] = {
    "SEQ_CLS": ("classes",),
    "QUESTION_ANS": ("spans",),
    None: ("classes", "spans"),
}


@dataclass(frozen=True)
class Base:
    """The checkpoint that an adapter belongs to."""

    path: str
    config: DecoderConfig
    tokenizer: str

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        """The tensors of the checkpoint, read on first use."""
        return checkpoint.open_model(self.path).weights

    def find_missing(self, config: DecoderConfig) -> set[str]:
        """Return the parameters that a model of `config` has and the checkpoint lacks."""
        return set(find_fresh_parameters(checkpoint.read_entries(self.path), config))


def find_head(
    folder: str, base: Base, task: str | None, stored: Mapping[str, Tensor]
) -> DecoderConfig:
    """Return the config of `base` with the head that the PEFT folder saved whole.

    A base that already has such a head is returned unchanged. `stored` are the folder's tensors.
    Raises DataError for an encoder's head of one number.
    """
    config = base.config
    if config.head not in ("tokens", "replaced"):
        return config
    whole = {
        name: value for key, value in stored.items() for name, last in [split_key(key)] if not last
    }
    for head in HEADS.get(task, ()):
        two = ("LABEL_0", "LABEL_1") if head == "classes" else ()
        name = find_tensors(base.path, config.with_head(head, two)).get("head.weight")
        if name not in whole:
            continue
        count = len(whole[name])
        if head == "spans":
            return config.with_head(head)
        if count > 1:
            return config.with_head(head, tuple(f"LABEL_{number}" for number in range(count)))
        if not config.bidirectional:
            return config.with_score_head()
        raise DataError(
            f"{folder}: {name} gives one number for each text, which an encoder in trainrig "
            "can't; use a classifier with two labels or more"
        )
    return config


def fill_head(
    folder: str,
    base: Base,
    config: DecoderConfig,
    lora: LoRA,
    tensors: Mapping[str, Tensor],
    whole: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return the adapter `tensors` of `lora` with the tensors of a head that is trained whole.

    Head tensors come from `whole`, or else from `base` with the changes of `tensors` merged. Raises
    DataError for a head tensor that is in neither, and for other tensors of `whole` that differ
    from the base.
    """
    theirs = find_tensors(base.path, config)
    found = {name: value for name, value in tensors.items() if not is_of_head(config, name)}
    changes = {name: value for name, value in tensors.items() if name not in found}
    wanted = {name for name in list_adapter_shapes(config, lora) if not is_adapter(name)}
    missing = base.find_missing(config) if wanted - whole.keys() else set()
    for name in sorted(wanted):
        if name in whole:
            found[name] = whole[name].float()
        elif name in missing:
            raise DataError(
                f"{folder}: {theirs[name]} is neither in this folder nor in the base at "
                f"{base.path}; import the whole model that was the base in PEFT, and name it"
            )
        else:
            module = name.rpartition(".")[0]
            own = {n: tensor for n, tensor in changes.items() if n.rpartition(".")[0] == module}
            plain = {name: base.weights[name]}
            found[name] = merge(plain, own if name.endswith(".weight") else {}, lora)[name]
    for name in whole.keys() - wanted:
        there = base.weights[name]
        if whole[name].shape != there.shape or not torch.equal(whole[name].float(), there):
            raise DataError(
                f"{folder}: {theirs[name]} is saved whole, which trainrig supports only for "
                "heads of classes, scores or spans; merge the adapter with PEFT's "
                "merge_and_unload(), and import the merged model"
            )
    return found
