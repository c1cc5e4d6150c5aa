"""PEFT's `adapter_config.json`, and the mapping between our names and those of PEFT's tensors."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from trainrig import storage
from trainrig.errors import DataError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.decoder_fields import Head
from trainrig.models.architecture.lora_settings import alpha_divisor
from trainrig.models.families import find_family
from trainrig.models.families.tensors import list_tensor_shapes, list_tensors
from trainrig.train import checkpoint

PREFIX = "base_model.model."
Value = TypeVar("Value")


@dataclass(frozen=True)
class TheirLayer:
    """A matrix in Transformers with the layers here that it consists of.

    The layers are stacked along the outputs; for example queries, keys and values.
    """

    name: str
    parts: tuple[str, ...]
    outputs: tuple[int, ...]  # Number of outputs of each part.
    # Whether the matrix is stored as [inputs, outputs], as in `Conv1D`. Adapters are the same.
    inputs_first: bool = False
    # Number of each output of theirs among the stacked outputs here; None: the same order.
    order: tuple[int, ...] | None = None


def find_layers(path: str, config: DecoderConfig) -> dict[str, TheirLayer]:
    """Return the matrices of a model of `config` in Transformers, by their names there.

    `path` is the checkpoint of the model.
    """
    family = find_family(config, checkpoint.read_tokenizer_files(path).parse_json("config.json"))
    shapes = list_tensor_shapes(config)
    found = {}
    for entry in list_tensors(family, config, shapes):
        sizes = [shapes[name] for name in entry.ours]
        if not entry.theirs.endswith(".weight") or len(sizes[0]) != 2:
            continue
        name = entry.theirs.removesuffix(".weight")
        parts = tuple(name.removesuffix(".weight") for name in entry.ours)
        outputs = tuple(size[0] for size in sizes)
        found[name] = TheirLayer(name, parts, outputs, entry.transposed, entry.order)
    return found


def find_tensors(path: str, config: DecoderConfig) -> dict[str, str]:
    """Return the Transformers name of each tensor that is the same tensor in both, by our name."""
    family = find_family(config, checkpoint.read_tokenizer_files(path).parse_json("config.json"))
    table = list_tensors(family, config, list_tensor_shapes(config))
    return {
        e.ours[0]: e.theirs
        for e in table
        if len(e.ours) == 1 and not e.transposed and e.order is None
    }


def name_saved_module(tensor: str) -> str:
    """Return the module that PEFT saves whole for `tensor`.

    It is the tensor's own module, except that PEFT always saves a classifier of several layers as
    one module.
    """
    module = tensor.rpartition(".")[0]
    return "classifier" if module.startswith("classifier.") else module


def to_peft(last: str, value: Tensor, embedding: bool) -> tuple[str, Tensor]:
    """Return PEFT's name and form of an adapter tensor, by our name part `last`."""
    if last == "magnitude":
        return "lora_magnitude_vector", value
    if embedding:  # PEFT treats vocabulary entries as inputs of an embedding.
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
    """Split a PEFT key into the layer name and our last name part.

    A tensor that was saved whole gives its own name, and None.
    """
    plain = key.removeprefix(PREFIX)
    for suffix, last in _OURS.items():
        if plain.endswith(suffix):
            return plain.removesuffix(suffix), last
    return plain.replace(".base_layer.", "."), None


def name_targets(chosen: set[str], names: set[str]) -> list[str]:
    """Return the shortest names that PEFT resolves to `chosen` and no other layer of `names`."""
    last = {name.rpartition(".")[2] for name in chosen}
    meant = {name for name in names if name.rpartition(".")[2] in last}
    return sorted(last) if meant == chosen else sorted(chosen)


def name_patterns(values: Mapping[str, Value], plain: Value) -> dict[str, Value]:
    """Return the `values` that differ from `plain`, by the shortest unambiguous PEFT pattern.

    `values` are keyed by layer.
    """
    found = {}
    for name, value in values.items():
        last = name.rpartition(".")[2]
        alike = {other for layer, other in values.items() if layer.rpartition(".")[2] == last}
        if value != plain:
            found[last if len(alike) == 1 else re.escape(name)] = value
    return found


def find_pattern(patterns: Mapping[str, Value], layer: str, plain: Value) -> Value:
    """Return the value of the first of `patterns` that matches `layer`, or `plain`.

    Patterns match as in PEFT.
    """
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", layer):
            return value
    return plain


def name_lora_targets(chosen: set[str], names: set[str]) -> list[str]:
    """Return the shortest patterns that match `chosen` and no other layer of `names`."""
    patterns = {".".join(name.split(".")[-2:]) if "." in name else name for name in chosen}
    meant = {name for name in names if any(name == p or name.endswith(f".{p}") for p in patterns)}
    return sorted(patterns if meant == chosen else chosen)


CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
# PEFT's task type for each model head.
TASKS: Mapping[Head, str] = {
    "tokens": "CAUSAL_LM", "score": "SEQ_CLS", "classes": "SEQ_CLS", "spans": "QUESTION_ANS",
}  # fmt: skip
# PEFT settings that would change the result, with the values at which they do not. An
# initialisation other than W + B A (PiSSA, OLoRA, CorDA, LoftQ, …) has changed W as well.
UNUSED: Mapping[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
    "lora_bias": (False,),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
    "alora_invocation_tokens": (None,),
    "use_qalora": (False,),
    "use_bdlora": (None, False),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "monteclora_config": (None,),
}


@dataclass(frozen=True)
class PeftSettings:
    """The PEFT settings that LoRA also has here."""

    task: str | None
    rank: int
    alpha: float
    ranks: Mapping[str, int]  # Ranks that differ from `rank`, by name pattern.
    alphas: Mapping[str, float]
    rslora: bool
    dora: bool

    @property
    def scale(self) -> float:
        """The LoRA scaling factor of layers that no pattern matches."""
        return self.alpha / alpha_divisor(self.rank, self.rslora)

    def find_rank(self, layer: str) -> int:
        """Return the rank of the adapter of `layer`."""
        return find_pattern(self.ranks, layer, self.rank)

    def find_scale(self, layer: str) -> float:
        """Return the LoRA scaling factor of `layer`."""
        alpha = find_pattern(self.alphas, layer, self.alpha)
        return alpha / alpha_divisor(self.find_rank(layer), self.rslora)


def read_settings(folder: str) -> PeftSettings:
    """Read the PEFT settings of `folder`.

    Raises DataError for settings that would compute something else here.
    """
    path = storage.join(folder, CONFIG)
    try:
        given: dict[str, Any] = json.loads(storage.read(path))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; name a folder that PEFT saved") from None
    except ValueError:
        raise DataError(f"{path}: not JSON; save the adapter again") from None
    if given.get("peft_type") != "LORA":
        raise DataError(
            f"{path}: peft_type {given.get('peft_type')!r} is not supported; there is: 'LORA'"
        )
    for key, plain in UNUSED.items():
        if key in given and given[key] not in plain:
            raise DataError(
                f"{path}: {key} = {given[key]!r} is not supported, because trainrig would "
                "compute something else"
            )
    return PeftSettings(
        task=given.get("task_type"),
        rank=given["r"],
        alpha=given["lora_alpha"],
        ranks=given.get("rank_pattern") or {},
        alphas=given.get("alpha_pattern") or {},
        rslora=given.get("use_rslora", False),
        dora=given.get("use_dora", False),
    )
