"""Export of an adapter as a PEFT folder: `adapter_config.json` and `adapter_model.safetensors`.

Names are those of the Transformers model. Where several layers here are one matrix in Transformers,
their adapters are joined into one, of higher rank. A head that is trained whole is listed in
`modules_to_save`.
"""

import json
from collections.abc import Mapping, Set
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from trainrig import storage
from trainrig.errors import DataError, OutputTaken
from trainrig.models.added_tokens import TABLES
from trainrig.models.architecture.lora_settings import (
    LoRA,
    alpha_divisor,
)
from trainrig.models.lora import is_adapter
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

    Raises DataError if the checkpoint is not an adapter, and if it adapts an embedding that shares
    its table with the head: PEFT would change one without the other.
    """
    check_folder(out)
    if storage.list_files(out):
        raise OutputTaken(f"{out}: not empty; name a new folder")
    opened = checkpoint.open_model(path)
    if opened.adapter is None:
        raise DataError(
            f"{opened.path}: holds a whole model, not an adapter; export it without --adapter"
        )
    lora = opened.adapter.of.lora
    ours = opened.adapter.tensors
    layers = find_layers(opened.path, opened.config)
    joined = _join(opened.path, layers, ours, opened.weights)
    if opened.config.tie_embeddings and any(
        layers[name].parts == ("embedding",) for name in joined
    ):
        raise DataError(
            f"{opened.path}: the adapter changes the embedding and the head that shares its "
            "table, which PEFT can't do; export without --adapter, which merges it"
        )
    tensors = {}
    for name, adapter in joined.items():
        for last, value in adapter.tensors.items():
            key, value = to_peft(last, value, layers[name].parts == ("embedding",))
            tensors[f"{PREFIX}{name}.{key}"] = value.contiguous()
    whole = find_tensors(opened.path, opened.config)
    saved = {whole[name]: value for name, value in ours.items() if not is_adapter(name)}
    tensors |= {PREFIX + name: value.contiguous() for name, value in saved.items()}
    tensors |= _read_grown_tables(opened.adapter.of.base, whole, set(joined), set(saved))
    ranks = {name: adapter.rank for name, adapter in joined.items()}
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
    """Return the tables of `base` with rows for tokens that `import` added, by PEFT key.

    The result is empty if no token was added. The Transformers model has no such rows, or other
    ones. PEFT itself saves whole tables when they were resized, and reads them back. `theirs` maps
    tensor names here to those in Transformers; `adapted` and `saved` are the layers and tensors
    that the adapter already contains.
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
    """Return the alpha with which an adapter of `rank` has the scale of `lora`."""
    return lora.alpha if rank == lora.rank else lora.scale * alpha_divisor(rank, lora.rslora)


def _join(
    path: str,
    layers: Mapping[str, TheirLayer],
    ours: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
) -> dict[str, LowRank]:
    """Return the joined adapters by the name of their matrix in Transformers.

    Raises DataError for an adapter of a layer that is not a matrix in Transformers.
    """
    found = {}
    met = set[str]()
    for name, layer in layers.items():
        parts = [LowRank.of(part, ours) for part in layer.parts]
        if any(parts):
            found[name] = join_parts(layer, parts, weights)
            met.update(layer.parts)
    adapted = {name.rpartition(".")[0] for name in ours if is_adapter(name)}
    if odd := sorted(adapted - met):
        raise DataError(
            f"{path}: {odd[0]} is not a separate matrix in Transformers, so PEFT can't change "
            "it; export without --adapter, which merges it"
        )
    return found
