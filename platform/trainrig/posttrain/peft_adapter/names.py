"""What PEFT calls the layers and tensors of a model, and ours."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.families import find_family
from trainrig.models.families.tensors import list_tensor_shapes, list_tensors
from trainrig.train import checkpoint

PREFIX = "base_model.model."
Value = TypeVar("Value")


@dataclass(frozen=True)
class TheirLayer:
    """A matrix in Transformers, and our layers that lie one after the other in it, along its
    outputs: queries, keys and values, say."""

    name: str
    parts: tuple[str, ...]
    outputs: tuple[int, ...]  # of each of them
    inputs_first: bool = False  # [inputs, outputs], as in `Conv1D`; adapters do not differ


def find_layers(path: str, config: DecoderConfig) -> dict[str, TheirLayer]:
    """The matrices that a model of `config` has in Transformers, by their names; `path`: the
    checkpoint that it is of."""
    family = find_family(config, checkpoint.read_tokenizer_files(path).parse_json("config.json"))
    shapes = list_tensor_shapes(config)
    found = {}
    for entry in list_tensors(family, config, shapes):
        sizes = [shapes[name] for name in entry.ours]
        if not entry.theirs.endswith(".weight") or len(sizes[0]) != 2:
            continue
        name = entry.theirs.removesuffix(".weight")
        parts = tuple(each.removesuffix(".weight") for each in entry.ours)
        outputs = tuple(size[0] for size in sizes)
        found[name] = TheirLayer(name, parts, outputs, entry.transposed)
    return found


def find_tensors(path: str, config: DecoderConfig) -> dict[str, str]:
    """Our name of each tensor that is one in Transformers too, and theirs."""
    family = find_family(config, checkpoint.read_tokenizer_files(path).parse_json("config.json"))
    table = list_tensors(family, config, list_tensor_shapes(config))
    return {e.ours[0]: e.theirs for e in table if len(e.ours) == 1 and not e.transposed}


def name_saved_module(tensor: str) -> str:
    """The module that PEFT saves whole for `tensor`: its own, but for a classifier of several
    layers, which PEFT always saves as one and could not save in parts beside that."""
    module = tensor.rpartition(".")[0]
    return "classifier" if module.startswith("classifier.") else module


def to_peft(last: str, value: Tensor, embedding: bool) -> tuple[str, Tensor]:
    """Their last part of a tensor's name for our `last`, and the tensor as they have it."""
    if last == "magnitude":
        return "lora_magnitude_vector", value
    if embedding:  # theirs has entries as inputs
        return {"lora_a": "lora_embedding_B", "lora_b": "lora_embedding_A"}[last], value.T
    return {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight"}[last], value


_OURS = {
    ".lora_A.weight": "lora_a",
    ".lora_B.weight": "lora_b",
    ".lora_embedding_A": "lora_b",
    ".lora_embedding_B": "lora_a",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
}


def split_key(key: str) -> tuple[str, str | None]:
    """Their name of the layer, and our last part of a tensor's name; their name of a whole tensor,
    and None."""
    plain = key.removeprefix(PREFIX)
    for suffix, last in _OURS.items():
        if plain.endswith(suffix):
            return plain.removesuffix(suffix), last
    return plain.replace(".base_layer.", "."), None


def name_targets(chosen: set[str], names: set[str]) -> list[str]:
    """The shortest names that PEFT takes for the layers `chosen` and no other of `names`."""
    last = {name.rpartition(".")[2] for name in chosen}
    meant = {name for name in names if name.rpartition(".")[2] in last}
    return sorted(last) if meant == chosen else sorted(chosen)


def name_patterns(values: Mapping[str, Value], plain: Value) -> dict[str, Value]:
    """Those of `values`, by layer, that are not `plain`, by the shortest patterns that PEFT takes
    for these layers and no other."""
    found = {}
    for name, value in values.items():
        last = name.rpartition(".")[2]
        alike = {other for layer, other in values.items() if layer.rpartition(".")[2] == last}
        if value != plain:
            found[last if len(alike) == 1 else re.escape(name)] = value
    return found


def find_pattern(patterns: Mapping[str, Value], layer: str, plain: Value) -> Value:
    """What `patterns` of PEFT say of `layer`, as PEFT reads them; `plain` if nothing."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", layer):
            return value
    return plain


def name_lora_targets(chosen: set[str], names: set[str]) -> list[str]:
    """The shortest patterns of these layers and no other."""
    patterns = {".".join(name.split(".")[-2:]) if "." in name else name for name in chosen}
    meant = {name for name in names if any(name == p or name.endswith(f".{p}") for p in patterns)}
    return sorted(patterns if meant == chosen else chosen)
