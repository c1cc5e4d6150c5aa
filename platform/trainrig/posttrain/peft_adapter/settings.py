"""Reading of PEFT's `adapter_config.json`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainrig import storage
from trainrig.errors import DataError
from trainrig.models.architecture.decoder_fields import Head
from trainrig.models.architecture.lora_settings import alpha_divisor
from trainrig.posttrain.peft_adapter.names import find_pattern

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
