"""Adapters to folders of Hugging Face's PEFT and back.

A folder holds `adapter_config.json` and `adapter_model.safetensors`; names are those of the model
in Transformers. Of PEFT's settings, those are read that LoRA here has; any other that changes what
is computed is refused.
"""

import json
from collections.abc import Mapping
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from trainrig import storage
from trainrig.config import build
from trainrig.errors import DataError, OutputTaken
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.families import find_family
from trainrig.models.families.tensors import table_of, tensor_shapes
from trainrig.models.lora.layers import adapter_shapes, is_adapter
from trainrig.models.lora.settings import LoRA
from trainrig.storage.writable import check_folder
from trainrig.train import checkpoint
from trainrig.train.job import Adapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
# What PEFT calls the work of a model, by its head.
TASKS = {
    "tokens": "CAUSAL_LM", "score": "SEQ_CLS", "classes": "SEQ_CLS", "spans": "QUESTION_ANS",
}  # fmt: skip
# Settings that would compute something else, and what they are where they do not.
UNUSED: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "fan_in_fan_out": (False,),
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
    "lora_bias": (False,),
}


def export_adapter(path: str, out: str) -> dict[str, Any]:
    """Write the adapter of the newest checkpoint at `path` as the PEFT folder `out`.

    Raises DataError if it is none, and for an embedding that shares its table with the head: PEFT
    would change the one without the other.
    """
    check_folder(out)
    if storage.list_files(out):
        raise OutputTaken(f"{out}: not empty; name a new folder")
    opened = checkpoint.open_model(path)
    if opened.adapter is None:
        raise DataError(f"{opened.path}: no adapter, but a whole model; export without --adapter")
    lora = opened.adapter.of.lora
    theirs = _module_names(opened.path, opened.config)
    tensors = {}
    whole = _tensor_names(opened.path, opened.config)
    saved = set()  # modules that are trained whole
    for name, value in opened.adapter.tensors.items():
        module, _, last = name.rpartition(".")
        if not is_adapter(name) and name in whole:
            tensors[PREFIX + whole[name]] = value.contiguous()
            saved.add(name_saved_module(whole[name]))
            continue
        if module not in theirs:
            raise DataError(
                f"{opened.path}: {module} is no matrix of its own in Transformers, where PEFT "
                "could change it; export without --adapter, which merges it"
            )
        if module == "embedding" and opened.config.tie_embeddings:
            raise DataError(
                f"{opened.path}: its adapter changes the embedding and the head that shares its "
                "table, which PEFT can't; export without --adapter, which merges it"
            )
        key, value = _to_peft(last, value, module == "embedding")
        tensors[f"{PREFIX}{theirs[module]}.{key}"] = value.contiguous()
    chosen = {name.rpartition(".")[0] for name in opened.adapter.tensors if is_adapter(name)}
    settings = {
        "peft_type": "LORA",
        "task_type": TASKS[opened.config.head],
        "modules_to_save": sorted(saved) or None,
        "base_model_name_or_path": opened.adapter.of.base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": _their_targets(chosen, theirs),
        "use_rslora": lora.rslora,
        "use_dora": lora.dora,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    with storage.atomic_file(storage.join(out, WEIGHTS)) as local:
        save_file(tensors, local, metadata={"format": "pt"})
    storage.write(storage.join(out, CONFIG), json.dumps(settings, indent=2).encode())
    return {"output": out, "checkpoint": opened.path, "step": opened.step, "rank": lora.rank}


def name_saved_module(tensor: str) -> str:
    """The module that PEFT saves whole for `tensor`: its own, but for a classifier of several
    layers, which PEFT always saves as one and could not save in parts beside that."""
    module = tensor.rpartition(".")[0]
    return "classifier" if module.startswith("classifier.") else module


def import_adapter(folder: str, base: str, out: str) -> dict[str, Any]:
    """Write the PEFT folder `folder`, an adapter of the newest checkpoint at `base`, as step 0 of
    the run folder `out`. Raises DataError for what would compute something else here."""
    check_folder(out)
    if storage.list_files(out):
        raise OutputTaken(f"{out}: not empty; name a new folder")
    path = checkpoint.resolve(storage.absolute(base))
    config, tokenizer = checkpoint.describe(path)
    settings = _read_settings(folder)
    stored = load_file(storage.local_path(storage.join(folder, WEIGHTS)))
    ours = {theirs: name for name, theirs in _module_names(path, config).items()}
    tensors: dict[str, Tensor] = {}
    for key, value in stored.items():
        module, last = _split_key(key)
        if module not in ours or last is None:
            raise DataError(
                f"{folder}: tensor {key!r} has no place in the model at {path}; is it an adapter "
                "of another base?"
            )
        if ours[module] == "embedding" and config.tie_embeddings:
            raise DataError(
                f"{folder}: changes the embedding but not the head that shares its table, which "
                "can't be told apart here"
            )
        tensors[f"{ours[module]}.{last}"] = value.T if "embedding" in key else value
    chosen = {name.rpartition(".")[0] for name in tensors}
    lora = build(LoRA, settings | {"targets": _our_targets(chosen, set(ours.values()))}, folder)
    _check_sizes(folder, config, lora, tensors)
    adapter = Adapter(lora, path, checkpoint.manifest_sum(path))
    beside = checkpoint.tokenizer_files(path).beside
    written = checkpoint.write_adapter(out, config, tokenizer, adapter, tensors, beside)
    parameters = sum(value.numel() for value in tensors.values())
    return {"output": out, "checkpoint": written, "base": path, "parameters": parameters}


def _module_names(path: str, config: DecoderConfig) -> dict[str, str]:
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


def _tensor_names(path: str, config: DecoderConfig) -> dict[str, str]:
    """Our name of each tensor that is one in Transformers too, and theirs."""
    family = find_family(config, checkpoint.tokenizer_files(path).json("config.json"))
    table = table_of(family, config, tensor_shapes(config))
    return {e.ours[0]: e.theirs for e in table if len(e.ours) == 1 and not e.transposed}


def _to_peft(last: str, value: Tensor, embedding: bool) -> tuple[str, Tensor]:
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


def _split_key(key: str) -> tuple[str, str | None]:
    """Their name of the layer, and our last part of a tensor's name."""
    for suffix, last in _OURS.items():
        if key.endswith(suffix):
            return key.removesuffix(suffix).removeprefix(PREFIX), last
    return key, None


def _their_targets(chosen: set[str], theirs: Mapping[str, str]) -> list[str]:
    """The shortest names that PEFT takes for these layers and no other."""
    last = {theirs[name].rpartition(".")[2] for name in chosen}
    meant = {name for name, their in theirs.items() if their.rpartition(".")[2] in last}
    return sorted(last) if meant == chosen else sorted(theirs[name] for name in chosen)


def _our_targets(chosen: set[str], names: set[str]) -> list[str]:
    """The shortest patterns of these layers and no other."""
    patterns = {".".join(name.split(".")[-2:]) if "." in name else name for name in chosen}
    meant = {name for name in names if any(name == p or name.endswith(f".{p}") for p in patterns)}
    return sorted(patterns if meant == chosen else chosen)


def _read_settings(folder: str) -> dict[str, Any]:
    path = storage.join(folder, CONFIG)
    try:
        given: dict[str, Any] = json.loads(storage.read(path))
    except FileNotFoundError:
        raise DataError(f"{path}: not there; name a folder that PEFT saved") from None
    except ValueError:
        raise DataError(f"{path}: not JSON") from None
    if given.get("peft_type") != "LORA":
        raise DataError(f"{path}: peft_type {given.get('peft_type')!r}; there is: 'LORA'")
    for key, plain in UNUSED.items():
        if key in given and given[key] not in plain:
            raise DataError(f"{path}: {key} = {given[key]!r} would compute something else here")
    return {
        "rank": given["r"],
        "alpha": given["lora_alpha"],
        "rslora": given.get("use_rslora", False),
        "dora": given.get("use_dora", False),
    }


def _check_sizes(
    folder: str, config: DecoderConfig, lora: LoRA, tensors: Mapping[str, Tensor]
) -> None:
    wanted = adapter_shapes(config, lora)
    if odd := sorted(wanted.keys() ^ tensors.keys()):
        raise DataError(f"{folder}: {odd[0]} is {'missing' if odd[0] in wanted else 'too much'}")
    for name, shape in wanted.items():
        if tensors[name].shape != shape:
            raise DataError(
                f"{folder}: {name} is {tuple(tensors[name].shape)}, the base wants {tuple(shape)}; "
                "is it an adapter of another base?"
            )
