"""What PEFT calls the layers and tensors of a model, and ours."""

from collections.abc import Mapping

from torch import Tensor

from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.families import find_family
from trainrig.models.families.tensors import table_of, tensor_shapes
from trainrig.train import checkpoint

PREFIX = "base_model.model."


def name_saved_module(tensor: str) -> str:
    """The module that PEFT saves whole for `tensor`: its own, but for a classifier of several
    layers, which PEFT always saves as one and could not save in parts beside that."""
    module = tensor.rpartition(".")[0]
    return "classifier" if module.startswith("classifier.") else module


def module_names(path: str, config: DecoderConfig) -> dict[str, str]:
    """Our name of each layer that is a matrix in Transformers too, and theirs."""
    family = find_family(config, checkpoint.tokenizer_files(path).json("config.json"))
    shapes = tensor_shapes(config)
    return {
        entry.ours[0].removesuffix(".weight"): entry.theirs.removesuffix(".weight")
        for entry in table_of(family, config, shapes)
        if len(entry.ours) == 1
        and entry.theirs.endswith(".weight")
        and len(shapes[entry.ours[0]]) == 2
        and (not entry.transposed)
    }


def tensor_names(path: str, config: DecoderConfig) -> dict[str, str]:
    """Our name of each tensor that is one in Transformers too, and theirs."""
    family = find_family(config, checkpoint.tokenizer_files(path).json("config.json"))
    table = table_of(family, config, tensor_shapes(config))
    return {e.ours[0]: e.theirs for e in table if len(e.ours) == 1 and not e.transposed}


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
    """Their name of the layer, and our last part of a tensor's name."""
    for suffix, last in _OURS.items():
        if key.endswith(suffix):
            return key.removesuffix(suffix).removeprefix(PREFIX), last
    return key, None


def their_targets(chosen: set[str], theirs: Mapping[str, str]) -> list[str]:
    """The shortest names that PEFT takes for these layers and no other."""
    last = {theirs[name].rpartition(".")[2] for name in chosen}
    meant = {name for name, their in theirs.items() if their.rpartition(".")[2] in last}
    return sorted(last) if meant == chosen else sorted(theirs[name] for name in chosen)


def our_targets(chosen: set[str], names: set[str]) -> list[str]:
    """The shortest patterns of these layers and no other."""
    patterns = {".".join(name.split(".")[-2:]) if "." in name else name for name in chosen}
    meant = {name for name in names if any(name == p or name.endswith(f".{p}") for p in patterns)}
    return sorted(patterns if meant == chosen else chosen)
