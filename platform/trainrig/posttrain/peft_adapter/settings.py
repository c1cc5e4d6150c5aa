"""What `adapter_config.json` of PEFT says."""

import json
from typing import Any

from trainrig import storage
from trainrig.errors import DataError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
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


def read_settings(folder: str) -> dict[str, Any]:
    """Those of `folder` as ours of LoRA. Raises DataError for what would compute something else."""
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
