"""Counter of the bytes that a rank sends in collectives, by kind."""

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_GATHERS = ("_allgather_base_", "allgather_")
_SCATTERS = ("_reduce_scatter_base_", "reduce_scatter_", "alltoall_base_", "alltoall_")
# Only the stream [B, T, C] and, on request, flat gradients in float32 count: metrics, norms and
# flags are all-reduced as well.
_SUM = "allreduce_"
_STREAM = 3


class Sent(TorchDispatchMode):
    """Bytes that this rank sent.

    `bytes`: by the name of the collective. `to`: by the other rank's global number, for collectives
    that send each rank something different.
    """

    def __init__(self, flat: bool = False) -> None:
        """Count the sent bytes, with `flat` also those of all-reduced float32 vectors."""
        super().__init__()
        self._flat = flat
        self.bytes: Counter[str] = Counter()
        self.to: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":
            self._count(func._schema.name.partition("::")[2], args)
        return found

    def _count(self, name: str, args: Any) -> None:
        if name == _SUM and self._is_large(args[0][0]):  # sent as parts, and as sums of parts
            ranks = dist.ProcessGroup.unbox(args[1]).size()
            self.bytes[name] += 2 * sum(tensor.nbytes for tensor in args[0]) * (ranks - 1) // ranks
        if name not in (*_GATHERS, *_SCATTERS):
            return
        group = dist.ProcessGroup.unbox(args[2])
        if name == "alltoall_base_" and args[4]:  # number of input rows for each rank
            rows = args[4]
            row = args[1][:1].numel() * args[1].element_size()
            self.bytes[name] += row * (sum(rows) - rows[group.rank()])
            for number, count in enumerate(rows):
                if number != group.rank():
                    self.to[dist.get_global_rank(group, number)] += row * count
            return
        size = sum(
            tensor.numel() * tensor.element_size()
            for tensor in tree_leaves(args[1])  # the output comes first
            if isinstance(tensor, Tensor)
        )
        others = group.size() - 1
        self.bytes[name] += size * others // (1 if name in _GATHERS else group.size())

    def _is_large(self, tensor: Tensor) -> bool:
        flat = self._flat and tensor.ndim == 1 and tensor.dtype == torch.float32
        return flat or tensor.ndim == _STREAM
