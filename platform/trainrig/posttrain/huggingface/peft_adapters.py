"""Export and import of adapters as PEFT folders: their settings and their tensors.

Names are those of the Transformers model. Where several layers here are one matrix in Transformers,
the export joins their adapters into one, of higher rank. A head that is trained whole is listed in
`modules_to_save`.

The import reads the settings that LoRA has here and refuses any other setting that changes the
result. An adapter of a matrix that is several layers here is split. Ranks and scales that differ by
layer become one: A and B are padded with zeros, and B absorbs the difference of scales. Modules
that PEFT saved whole must belong to a head, which may differ from the base's head. Modules that
PEFT did not change are taken from the base.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Set
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from trainrig import storage
from trainrig.config import build
from trainrig.errors import DataError, OutputTaken
from trainrig.models.added_tokens import TABLES
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts
from trainrig.models.architecture.lora_settings import LoRA, alpha_divisor, is_of_head, is_router
from trainrig.models.lora import is_adapter, list_adapter_shapes
from trainrig.posttrain.huggingface import peft_layers, peft_settings
from trainrig.storage.writable import check_folder
from trainrig.tokens.special_tokens import NEW_TOKENS
from trainrig.train import checkpoint
from trainrig.train.checkpoint.model_parents import find_exported_parents, record_parents
from trainrig.train.training_job import Adapter


def export_adapter(path: str, out: str) -> dict[str, Any]:
    """Write the adapter of the newest checkpoint at `path` as the PEFT folder `out`.

    Raises DataError if the checkpoint is not an adapter, if it adapts an embedding that shares its
    table with the head (PEFT would change one without the other), and if it adapts feed-forward
    layers beside experts.
    """
    check_folder(out)
    if storage.find_first(out):
        raise OutputTaken(f"{out}: not empty; name a new folder")
    opened = checkpoint.open_model(path)
    if opened.adapter is None:
        raise DataError(
            f"{opened.path}: holds a whole model, not an adapter; export it without --adapter"
        )
    lora = opened.adapter.of.lora
    ours = opened.adapter.tensors
    layers = peft_settings.find_layers(opened.path, opened.config)
    joined = _join(opened.path, layers, ours, opened.weights)
    if opened.config.tie_embeddings and any(
        layers[name].parts == ("embedding",) for name in joined
    ):
        raise DataError(
            f"{opened.path}: the adapter changes the embedding and the head that shares its "
            "table, which PEFT can't do; export without --adapter, which merges it"
        )
    beside_experts = isinstance(opened.config.feedforward, MixtureOfExperts) and any(
        ".feedforward." in part for name in joined for part in layers[name].parts
    )
    if beside_experts:
        raise DataError(
            f"{opened.path}: the adapter changes feed-forward layers of a model with experts, "
            "whose names PEFT mistakes for names of experts; export without --adapter, which "
            "merges it"
        )
    tensors = {}
    for name, adapter in joined.items():
        for last, value in adapter.tensors.items():
            key, value = peft_settings.to_peft(last, value, layers[name].parts == ("embedding",))
            tensors[f"{peft_settings.PREFIX}{name}.{key}"] = value.contiguous()
    whole = peft_settings.find_tensors(opened.path, opened.config)
    saved = {whole[name]: value for name, value in ours.items() if not is_adapter(name)}
    tensors |= {peft_settings.PREFIX + name: value.contiguous() for name, value in saved.items()}
    tensors |= _read_grown_tables(opened.adapter.of.base, whole, set(joined), set(saved))
    ranks = {name: adapter.rank for name, adapter in joined.items()}
    alphas = {name: _compute_alpha(lora, rank) for name, rank in ranks.items()}
    settings = {
        "peft_type": "LORA",
        "task_type": peft_settings.TASKS[opened.config.head],
        "modules_to_save": sorted({peft_settings.name_saved_module(name) for name in saved})
        or None,
        "base_model_name_or_path": opened.adapter.of.base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "rank_pattern": peft_settings.name_patterns(ranks, lora.rank),
        "alpha_pattern": peft_settings.name_patterns(alphas, lora.alpha),
        "lora_dropout": lora.dropout,
        "target_modules": peft_settings.name_targets(set(joined), set(layers)),
        "use_rslora": lora.rslora,
        "use_dora": lora.dora,
        "bias": "none",
        "fan_in_fan_out": any(layers[name].inputs_first for name in joined),
        "inference_mode": True,
    }
    with storage.atomic_file(storage.join(out, peft_settings.WEIGHTS)) as local:
        save_file(tensors, local, metadata={"format": "pt"})
    storage.write(storage.join(out, peft_settings.CONFIG), json.dumps(settings, indent=2).encode())
    record_parents(out, "export", {"checkpoint": opened.path})
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
        found[peft_settings.PREFIX + key] = below.read(ours).contiguous()
    return found


def _compute_alpha(lora: LoRA, rank: int) -> float:
    """Return the alpha with which an adapter of `rank` has the scale of `lora`."""
    return lora.alpha if rank == lora.rank else lora.scale * alpha_divisor(rank, lora.rslora)


def _join(
    path: str,
    layers: Mapping[str, peft_settings.TheirLayer],
    ours: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
) -> dict[str, peft_layers.LowRank]:
    """Return the joined adapters by the name of their matrix in Transformers.

    Raises DataError for an adapter of a layer that is not a matrix in Transformers.
    """
    found = {}
    met = set[str]()
    for name, layer in layers.items():
        parts = [peft_layers.LowRank.of(part, ours) for part in layer.parts]
        if any(parts):
            found[name] = peft_layers.join_parts(layer, parts, weights)
            met.update(layer.parts)
    adapted = {name.rpartition(".")[0] for name in ours if is_adapter(name)}
    if odd := sorted(adapted - met):
        raise DataError(
            f"{path}: {odd[0]} is not a separate matrix in Transformers, so PEFT can't change "
            "it; export without --adapter, which merges it"
        )
    return found


def import_adapter(folder: str, base: str, out: str) -> dict[str, Any]:
    """Write the PEFT folder `folder` as step 0 of the run folder `out`.

    `base` is the checkpoint that the adapter belongs to. Raises DataError for an adapter that would
    compute something else here.
    """
    check_folder(out)
    if storage.find_first(out):
        raise OutputTaken(f"{out}: not empty; name a new folder")
    path = checkpoint.resolve(storage.make_absolute(base))
    below = peft_layers.Base(path, *checkpoint.describe(path))
    settings = peft_settings.read_settings(folder)
    stored = load_file(storage.fetch_local_path(storage.join(folder, peft_settings.WEIGHTS)))
    config = peft_layers.find_head(folder, below, settings.task, stored)
    layers = peft_settings.find_layers(path, config)
    theirs, whole = _read_tensors(folder, path, config, layers, stored)
    adapters = _take_apart(folder, layers, settings, theirs)
    if "embedding" in adapters and config.tie_embeddings:
        raise DataError(
            f"{folder}: the adapter changes the embedding but not the head that shares its "
            "table, which trainrig can't do; merge it with PEFT's merge_and_unload(), and "
            "import the merged model"
        )
    names = {part for layer in layers.values() for part in layer.parts}
    names = {name for name in names if not is_of_head(config, name)}
    lora = _settle(folder, settings, adapters, names)
    tensors = {
        f"{name}.{last}": value
        for name, adapter in adapters.items()
        for last, value in adapter.pad(lora.rank).tensors.items()
    }
    tensors = peft_layers.fill_head(folder, below, config, lora, tensors, whole)
    _check_sizes(folder, config, lora, tensors)
    adapter = Adapter(lora, path, checkpoint.compute_manifest_sum(path))
    beside = checkpoint.read_tokenizer_files(path).beside
    record_parents(out, "import", {"base": path}, find_exported_parents(folder))
    written = checkpoint.write_adapter(out, config, below.tokenizer, adapter, tensors, beside)
    parameters = sum(value.numel() for value in tensors.values())
    return {"output": out, "checkpoint": written, "base": path, "parameters": parameters}


def _read_tensors(
    folder: str,
    path: str,
    config: DecoderConfig,
    layers: Mapping[str, peft_settings.TheirLayer],
    stored: Mapping[str, Tensor],
) -> tuple[dict[str, peft_layers.LowRank], dict[str, Tensor]]:
    """Return the adapters by Transformers layer name, and the whole tensors by our name.

    Raises DataError for a tensor that has no place in the model at `path`.
    """
    ours = {theirs: name for name, theirs in peft_settings.find_tensors(path, config).items()}
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    whole = {}
    for key, value in stored.items():
        name, last = peft_settings.split_key(key)
        if last is None and name in ours:
            whole[ours[name]] = value
        elif last is not None and name in layers:
            if any(map(is_router, layers[name].parts)):
                raise DataError(
                    f"{folder}: {name} is a router, which can have no adapter in trainrig; "
                    f"leave {name.rpartition('.')[2]!r} out of target_modules"
                )
            parts[name][last] = (value.T if "lora_embedding" in key else value).float()
        else:
            raise DataError(
                f"{folder}: tensor {key!r} has no place in the model at {path}; check that "
                "the adapter belongs to this base"
            )
    found = {}
    for name, tensors in parts.items():
        if missing := {"lora_a", "lora_b"} - tensors.keys():
            raise DataError(f"{folder}: {name} has no {min(missing)}; save the adapter again")
        found[name] = peft_layers.LowRank(
            tensors["lora_a"], tensors["lora_b"], tensors.get("magnitude")
        )
    return found, whole


def _take_apart(
    folder: str,
    layers: Mapping[str, peft_settings.TheirLayer],
    settings: peft_settings.PeftSettings,
    theirs: Mapping[str, peft_layers.LowRank],
) -> dict[str, peft_layers.LowRank]:
    """Return the adapter of each of our layers, all at the scale `settings.scale`.

    Raises DataError for sizes that differ from those of the model or of `settings`.
    """
    found: dict[str, peft_layers.LowRank] = {}
    for name, adapter in theirs.items():
        outputs, rank = adapter.b_OR.shape
        if outputs != sum(layers[name].outputs) or rank != adapter.rank:
            raise DataError(
                f"{folder}: {name} has matrices of {tuple(adapter.a_RI.shape)} and "
                f"{tuple(adapter.b_OR.shape)}, but the base has {sum(layers[name].outputs)} "
                "outputs; check that the adapter belongs to this base"
            )
        if rank != settings.find_rank(name):
            raise DataError(
                f"{folder}: {name} has rank {rank}, but {peft_settings.CONFIG} says "
                f"{settings.find_rank(name)}; check that the files belong to one adapter"
            )
        factor = settings.find_scale(name) / settings.scale
        if not math.isclose(factor, 1.0):
            adapter = adapter.scale(factor)
        found |= peft_layers.split_parts(layers[name], adapter)
    return found


def _settle(
    folder: str,
    settings: peft_settings.PeftSettings,
    adapters: Mapping[str, peft_layers.LowRank],
    names: set[str],
) -> LoRA:
    """Return LoRA settings that cover `adapters`, with the highest rank of all.

    `names` are our layers below the head.
    """
    chosen = adapters.keys() & names
    if not chosen:
        raise DataError(f"{folder}: no layer below the head has an adapter; import a whole model")
    rank = max(adapter.rank for adapter in adapters.values())
    alpha = settings.scale * alpha_divisor(rank, settings.rslora)
    given = {
        "rank": rank,
        "alpha": settings.alpha if rank == settings.rank else alpha,
        "rslora": settings.rslora,
        "dora": settings.dora,
        "targets": peft_settings.name_lora_targets(chosen, names),
    }
    return build(LoRA, given, folder)


def _check_sizes(
    folder: str, config: DecoderConfig, lora: LoRA, tensors: Mapping[str, Tensor]
) -> None:
    wanted = list_adapter_shapes(config, lora)
    if odd := sorted(wanted.keys() ^ tensors.keys()):
        raise DataError(f"{folder}: {odd[0]} is {'missing' if odd[0] in wanted else 'unexpected'}")
    for name, shape in wanted.items():
        if tensors[name].shape != shape:
            raise DataError(
                f"{folder}: {name} has the shape {tuple(tensors[name].shape)}, but the base "
                f"needs {tuple(shape)}; check that the adapter belongs to this base"
            )
