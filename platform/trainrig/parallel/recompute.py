"""Settings that save memory: recomputation of activations, and offload to the host's memory.

Chen et al. 2016, arXiv:1604.06174; selective recomputation as in Korthikanti et al. 2022,
arXiv:2205.05198, section 5. Recomputed values have the same bits as the first time, so gradients
are unchanged.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from trainrig.config import Settings

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.checkpoint import CheckpointPolicy


# Parts of a layer that are kept for the backward pass: everything, the outputs of products and of
# attention, or the input alone.
Kept = Literal["all", "products", "input"]


class Full(Settings):
    """Recomputation of whole layers from their inputs: least memory, for a second forward pass."""

    kind: Literal["Full"] = "Full"
    # Recompute every n-th layer: 1 is all layers, 2 every second one.
    every: int = Field(default=1, ge=1)


class Selective(Settings):
    """Recomputation of everything except the outputs of matrix products and of attention."""

    kind: Literal["Selective"] = "Selective"


class Budget(Settings):
    """Recomputation of as few layers as a memory budget allows.

    As few layers as possible recompute the cheap operations. If that is not enough, as few layers
    as possible recompute everything.
    """

    kind: Literal["Budget"] = "Budget"
    # Memory of a device, in GiB, that layers may keep for the backward pass, over all unfinished
    # micro-batches. `trainrig check` prints the estimate for a run file.
    gib: float = Field(gt=0, allow_inf_nan=False)


Recompute = Annotated[Full | Selective | Budget, Field(discriminator="kind")]


def choose_kept(count: int, settings: Full | Selective | None) -> tuple[Kept, ...]:
    """Return what each of `count` layers keeps for the backward pass under `settings`."""
    if isinstance(settings, Full):
        again = range(settings.every - 1, count, settings.every)
        return tuple("input" if number in again else "all" for number in range(count))
    of_each: Kept = "products" if settings else "all"
    return (of_each,) * count


def recompute(layers: "Sequence[nn.Module]", kept: Sequence[Kept]) -> None:
    """Make each of `layers` recompute, in the backward pass, what `kept` does not list for it.

    Layers are changed in place and keep their names. Call this before `compile_layers` and `shard`.
    """
    # Imported here because torch takes seconds to import, and reading a run file should not.
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    of_products = functools.partial(create_selective_checkpoint_contexts, _keep_costly)
    for layer, what in zip(layers, kept, strict=True):
        if what == "all":
            continue
        again: dict[str, Any] = {"use_reentrant": False}
        if what == "products":
            again["context_fn"] = of_products
        layer.forward = functools.partial(checkpoint, layer.forward, **again)


@functools.cache
def list_costly() -> frozenset[Any]:
    """Return the operators that dominate a layer's time, for every device type.

    Attention has a different operator on each device.
    """
    import torch

    from trainrig.models import moe
    from trainrig.models.kernels import (
        blocked_attention,
        cpu_attention,
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
            cpu_attention.OPERATOR,
            reach_attention.OPERATOR,
            varlen_attention.OPERATOR,
            torch.ops.higher_order.flex_attention,
            moe.OPERATOR,
        }
    )


def _keep_costly(_: Any, operator: Any, *__: Any, **___: Any) -> "CheckpointPolicy":
    from torch.utils.checkpoint import CheckpointPolicy

    kept = operator in list_costly()
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


class Offload(Settings):
    """State and activations to keep in the host's memory to save GPU memory, bit-identically.

    On CPUs it saves nothing, because their memory is the host's.
    """

    # Whether to keep optimizer state in the host's memory. Each update fetches it parameter by
    # parameter and stores it back.
    optimizer: bool = False
    # Whether to keep what layers save for the backward pass in the host's memory, except for two
    # layers at a time. With recompute.kind = "Full" that is the input of each layer alone.
    activations: bool = False

    def check_beside(self, recompute: Recompute | None, by_places: bool) -> None:
        """Raise ValueError if activations would not be moved with such a `recompute`.

        `by_places`: ranks hold some positions each of what flows between layers (sequence
        parallelism).
        """
        if not self.activations:
            return
        if isinstance(recompute, Selective | Budget):
            raise ValueError(
                f"offload.activations: recompute.kind = '{recompute.kind}' already decides which "
                "activations to keep; set recompute.kind = 'Full', or remove [training.recompute]"
            )
        if by_places and (recompute is None or recompute.every > 1):
            raise ValueError(
                "offload.activations: with parallel.tensor.sequence_parallel, layers save parts "
                "of activations and gather the rest again; set recompute.kind = 'Full' for all "
                "layers"
            )
