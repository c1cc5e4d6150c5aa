"""Writes an adapter as a folder of PEFT: `adapter_config.json` and `adapter_model.safetensors`.

Names are those of the model in Transformers. Where several layers of ours are one matrix there, so
are their adapters, of a rank of its own; a head that is trained whole is among `modules_to_save`.
"""

import json
from collections.abc import Mapping, Set
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from trainrig import storage
from trainrig.errors import DataError, OutputTaken
from trainrig.models.added_tokens import TABLES
from trainrig.models.lora.layers import is_adapter
from trainrig.models.lora.settings import LoRA, alpha_divisor
from trainrig.posttrain.peft_adapter.joined_layers import LowRank, join_parts
from trainrig.posttrain.peft_adapter.names import (
    PREFIX,
    TheirLayer,
    find_layers,
    find_tensors,
    name_patterns,
    name_saved_module,
    name_targets,
    to_peft,
)
from trainrig.posttrain.peft_adapter.settings import CONFIG, TASKS, WEIGHTS
from trainrig.storage.writable import check_folder
from trainrig.tokens.special_tokens import NEW_TOKENS
from trainrig.train import checkpoint


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
    lora, ours = opened.adapter.of.lora, opened.adapter.tensors
    layers = find_layers(opened.path, opened.config)
    joined = _join(opened.path, layers, ours, opened.weights)
    if opened.config.tie_embeddings and any(
        layers[name].parts == ("embedding",) for name in joined
    ):
        raise DataError(
            f"{opened.path}: its adapter changes the embedding and the head that shares its "
            "table, which PEFT can't; export without --adapter, which merges it"
        )
    tensors = {}
    for name, each in joined.items():
        for last, value in each.tensors.items():
            key, value = to_peft(last, value, layers[name].parts == ("embedding",))
            tensors[f"{PREFIX}{name}.{key}"] = value.contiguous()
    whole = find_tensors(opened.path, opened.config)
    saved = {whole[name]: value for name, value in ours.items() if not is_adapter(name)}
    tensors |= {PREFIX + name: value.contiguous() for name, value in saved.items()}
    tensors |= _read_grown_tables(opened.adapter.of.base, whole, set(joined), set(saved))
    ranks = {name: each.rank for name, each in joined.items()}
    alphas = {name: _compute_alpha(lora, rank) for name, rank in ranks.items()}
    settings = {
        "peft_type": "LORA",
        "task_type": TASKS[opened.config.head],
        "modules_to_save": sorted({name_saved_module(name) for name in saved}) or None,
        "base_model_name_or_path": opened.adapter.of.base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "rank_pattern": name_patterns(ranks, lora.rank),
        "alpha_pattern": name_patterns(alphas, lora.alpha),
        "lora_dropout": lora.dropout,
        "target_modules": name_targets(set(joined), set(layers)),
        "use_rslora": lora.rslora,
        "use_dora": lora.dora,
        "bias": "none",
        "fan_in_fan_out": any(layers[name].inputs_first for name in joined),
        "inference_mode": True,
    }
    with storage.atomic_file(storage.join(out, WEIGHTS)) as local:
        save_file(tensors, local, metadata={"format": "pt"})
    storage.write(storage.join(out, CONFIG), json.dumps(settings, indent=2).encode())
    return {"output": out, "checkpoint": opened.path, "step": opened.step, "rank": lora.rank}


def _read_grown_tables(
    base: str, theirs: Mapping[str, str], adapted: Set[str], saved: Set[str]
) -> dict[str, Tensor]:
    """Return the tables of the checkpoint `base` that have rows for tokens which `import` added, by
    their keys in PEFT; none if no token was added.

    The model in Transformers has other rows there, or none. PEFT itself saves whole tables when
    they were resized, and reads them back. `theirs`: their name of each tensor of ours; `adapted`
    and `saved`: layers and tensors there that the adapter has already.
    """
    below = checkpoint.StoredModel(base)
    if NEW_TOKENS not in below.files.beside:
        return {}
    found = {}
    for ours in TABLES:
        name = theirs.get(ours)
        if name is None or name in saved:
            continue
        module, _, last = name.rpartition(".")
        key = f"{module}.base_layer.{last}" if module in adapted else name
        found[PREFIX + key] = below.read(ours).contiguous()
    return found


def _compute_alpha(lora: LoRA, rank: int) -> float:
    """That by which an adapter of `rank` has the scale of `lora`."""
    return lora.alpha if rank == lora.rank else lora.scale * alpha_divisor(rank, lora.rslora)


def _join(
    path: str,
    layers: Mapping[str, TheirLayer],
    ours: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
) -> dict[str, LowRank]:
    """The adapter of each matrix in Transformers that has some of `ours`, by its name there. Raises
    DataError for one of a layer that is none."""
    found, met = {}, set[str]()
    for name, layer in layers.items():
        parts = [LowRank.of(part, ours) for part in layer.parts]
        if any(parts):
            found[name] = join_parts(layer, parts, weights)
            met.update(layer.parts)
    adapted = {name.rpartition(".")[0] for name in ours if is_adapter(name)}
    if odd := sorted(adapted - met):
        raise DataError(
            f"{path}: {odd[0]} is no matrix of its own in Transformers, where PEFT "
            "could change it; export without --adapter, which merges it"
        )
    return found
