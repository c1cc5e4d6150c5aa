"""Models whose layers recompute activations, and what they keep for the backward pass."""

import gc
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from support.losses import cross_entropy_sum
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.parallel.recompute import Full, Recompute, Selective, choose_kept, recompute

WAYS: dict[str, Recompute | None] = {
    "none": None,
    "all layers": Full(),
    "every second": Full(every=2),
    "selective": Selective(),
}
# A mixture that a budget may choose.
MIXED = {"each in its way": ("all", "products", "input", "products")}
CONFIG = DecoderConfig(layers=4, channels=32, heads=4, kv_heads=2, vocabulary=64, positions=64)


def build(
    way: Recompute | tuple[Any, ...] | None,
    dtype: torch.dtype = torch.float32,
    config: DecoderConfig = CONFIG,
) -> Decoder:
    model = Decoder(config)
    initialise(model, 0)
    model = model.to(dtype)
    recompute(model.layers, way if isinstance(way, tuple) else choose_kept(config.layers, way))
    return model


def batch(length: int = 48, rows: int = 3) -> Tensor:
    return torch.randint(64, (rows, length), generator=torch.Generator().manual_seed(0))


def gradients(model: Decoder, packed: bool | None = None) -> list[Tensor | None]:
    ids = batch()
    positions = torch.arange(48).remainder(20).expand(3, -1) if packed else None
    loss = cross_entropy_sum(model(ids, positions_BT=positions).logits, ids)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())]


class Kept(TorchDispatchMode):
    """Counter of the bytes of tensors created inside the block, as long as they live."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.bytes = 0
        self._seen = weakref.WeakSet(
            parameter.untyped_storage() for parameter in model.parameters()
        )

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage() not in self._seen:
                storage = tensor.untyped_storage()
                self._seen.add(storage)
                self.bytes += storage.nbytes()
                weakref.finalize(storage, self._freed, storage.nbytes())
        return made

    def _freed(self, count: int) -> None:
        self.bytes -= count


def kept_for_the_backward_pass(way: Recompute | tuple[Any, ...] | None) -> int:
    """Return the bytes kept for the backward pass, without the logits, which every mode keeps."""
    model = build(way)
    ids = batch()
    with Kept(model) as kept:
        logits = model(ids).logits
        gc.collect()
        return kept.bytes - logits.untyped_storage().nbytes()
