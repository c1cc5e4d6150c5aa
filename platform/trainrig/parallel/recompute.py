"""Trading time for memory: what a layer computed is dropped, and computed again when needed.

Chen et al. 2016, arXiv:1604.06174; selectively, as Korthikanti et al. 2022, arXiv:2205.05198,
section 5. What is computed again has the bits of the first time, so gradients are unchanged.
"""

import functools
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from trainrig.config import Settings


class Full(Settings):
    """Of each layer only the input is kept: least memory, and a second forward pass."""

    kind: Literal["Full"] = "Full"
    every: int = Field(default=1, ge=1)  # 1: all layers; 2: every second; …


class Selective(Settings):
    """What products and attention gave is kept; what is cheap between them is computed again."""

    kind: Literal["Selective"] = "Selective"


Recompute = Annotated[Full | Selective, Field(discriminator="kind")]

_aten = torch.ops.aten
# What costs a layer its time, on any device. Attention has a kernel of its own on each.
DEAR = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    }
)


def recompute(layers: nn.ModuleList, settings: Full | Selective | None) -> None:
    """Have `layers` compute again, in the backward pass, what `settings` do not keep.

    In place, names unchanged. To be called before `compile_layers` and `shard`.
    """
    if settings is None:
        return
    again: dict[str, Any] = {"use_reentrant": False}
    if isinstance(settings, Selective):
        again["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _keep_dear)
    every = settings.every if isinstance(settings, Full) else 1
    for layer in layers[every - 1 :: every]:
        layer.forward = functools.partial(checkpoint, layer.forward, **again)


def _keep_dear(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    dear = operator in DEAR
    return CheckpointPolicy.MUST_SAVE if dear else CheckpointPolicy.PREFER_RECOMPUTE
