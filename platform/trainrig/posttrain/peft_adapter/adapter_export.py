"""Writes an adapter as a folder of PEFT: `adapter_config.json` and `adapter_model.safetensors`.

Names are those of the model in Transformers.
"""

import json
from typing import Any

from safetensors.torch import save_file

from trainrig import storage
from trainrig.errors import DataError, OutputTaken
from trainrig.models.lora.layers import is_adapter
from trainrig.posttrain.peft_adapter.names import (
    PREFIX,
    module_names,
    name_saved_module,
    tensor_names,
    their_targets,
    to_peft,
)
from trainrig.posttrain.peft_adapter.settings import CONFIG, TASKS, WEIGHTS
from trainrig.storage.writable import check_folder
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
    lora = opened.adapter.of.lora
    theirs = module_names(opened.path, opened.config)
    tensors = {}
    whole = tensor_names(opened.path, opened.config)
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
        key, value = to_peft(last, value, module == "embedding")
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
        "target_modules": their_targets(chosen, theirs),
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
