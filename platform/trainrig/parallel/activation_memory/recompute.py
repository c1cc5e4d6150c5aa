"""Trading time for memory: what a layer computed is dropped, and computed again when needed.

Chen et al. 2016, arXiv:1604.06174; selectively, as Korthikanti et al. 2022, arXiv:2205.05198,
section 5. What is computed again has the bits of the first time, so gradients are unchanged.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from trainrig.config import Settings

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.checkpoint import CheckpointPolicy

# What of a layer is kept for the backward pass: all of it, what products and attention gave, or
# its input alone.
Kept = Literal["all", "products", "input"]


class Full(Settings):
    """Of each layer only the input is kept: least memory, and a second forward pass."""

    kind: Literal["Full"] = "Full"
    # Which layers to recompute: 1 is all of them, 2 every second one.
    every: int = Field(default=1, ge=1)


class Selective(Settings):
    """What products and attention gave is kept; what is cheap between them is computed again."""

    kind: Literal["Selective"] = "Selective"


class Budget(Settings):
    """As much is kept as fits: as few layers as possible compute again what is cheap, and if that
    is not enough, as few as possible compute everything again."""

    kind: Literal["Budget"] = "Budget"
    # GiB of a device that layers may keep for the backward pass, of all micro-batches that are
    # under way at once; `trainrig check` says what it comes to.
    gib: float = Field(gt=0, allow_inf_nan=False)


Recompute = Annotated[Full | Selective | Budget, Field(discriminator="kind")]


def choose_kept(count: int, settings: Full | Selective | None) -> tuple[Kept, ...]:
    """What each of `count` layers keeps."""
    if isinstance(settings, Full):
        again = range(settings.every - 1, count, settings.every)
        return tuple("input" if number in again else "all" for number in range(count))
    of_each: Kept = "products" if settings else "all"
    return (of_each,) * count


def recompute(layers: "Sequence[nn.Module]", kept: Sequence[Kept]) -> None:
    """Have each of `layers` compute again, in the backward pass, what is not `kept` of it.

    In place, names unchanged. To be called before `compile_layers` and `shard`.
    """
    # Here: torch takes seconds, which reading a run file should not.
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    of_products = functools.partial(create_selective_checkpoint_contexts, _keep_dear)
    for layer, what in zip(layers, kept, strict=True):
        if what == "all":
            continue
        again: dict[str, Any] = {"use_reentrant": False}
        if what == "products":
            again["context_fn"] = of_products
        layer.forward = functools.partial(checkpoint, layer.forward, **again)


@functools.cache
def list_costly() -> frozenset[Any]:
    """What costs a layer its time, on any device. Attention has a kernel of its own on each."""
    import torch

    from trainrig.models import moe
    from trainrig.models.kernels import (
        blocked_attention,
        document_attention,
        reach_attention,
        varlen_attention,
    )

    aten = torch.ops.aten
    return frozenset(
        {
            aten.mm.default,
            aten.addmm.default,
            aten.bmm.default,
            aten._scaled_mm.default,
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            aten._scaled_dot_product_flash_attention.default,
            aten._scaled_dot_product_efficient_attention.default,
            aten._scaled_dot_product_cudnn_attention.default,
            blocked_attention.OPERATOR,
            document_attention.OPERATOR,
            reach_attention.OPERATOR,
            varlen_attention.OPERATOR,
            torch.ops.higher_order.flex_attention,
            moe.OPERATOR,
        }
    )


def _keep_dear(_: Any, operator: Any, *__: Any, **___: Any) -> "CheckpointPolicy":
    from torch.utils.checkpoint import CheckpointPolicy

    kept = operator in list_costly()
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
