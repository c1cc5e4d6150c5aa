"""What `adapter_config.json` of PEFT says."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainrig import storage
from trainrig.errors import DataError
from trainrig.models.architecture.decoder_fields import Head
from trainrig.models.lora.settings import alpha_divisor
from trainrig.posttrain.peft_adapter.names import find_pattern

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# What PEFT calls the work of a model, by its head.
TASKS: Mapping[Head, str] = {
    "tokens": "CAUSAL_LM", "score": "SEQ_CLS", "classes": "SEQ_CLS", "spans": "QUESTION_ANS",
}  # fmt: skip
# Settings that would compute something else, and what they are where they do not. What begins
# otherwise than from W + B A (PiSSA, OLoRA, CorDA, LoftQ, …) has changed W as well.
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
    """Those that LoRA here has."""

    task: str | None
    rank: int
    alpha: float
    ranks: Mapping[str, int]  # by patterns of names
    alphas: Mapping[str, float]
    rslora: bool
    dora: bool

    @property
    def scale(self) -> float:
        """What adapters that no pattern names are multiplied by."""
        return self.alpha / alpha_divisor(self.rank, self.rslora)

    def find_rank(self, layer: str) -> int:
        """Of the adapter of `layer`."""
        return find_pattern(self.ranks, layer, self.rank)

    def find_scale(self, layer: str) -> float:
        """What the adapter of `layer` is multiplied by."""
        alpha = find_pattern(self.alphas, layer, self.alpha)
        return alpha / alpha_divisor(self.find_rank(layer), self.rslora)


def read_settings(folder: str) -> PeftSettings:
    """Those of `folder`. Raises DataError for what would compute something else."""
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
    return PeftSettings(
        task=given.get("task_type"),
        rank=given["r"],
        alpha=given["lora_alpha"],
        ranks=given.get("rank_pattern") or {},
        alphas=given.get("alpha_pattern") or {},
        rslora=given.get("use_rslora", False),
        dora=given.get("use_dora", False),
    )
