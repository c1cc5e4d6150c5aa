"""Counts what a rank sends to others: bytes of collectives, by kind."""

from collections import Counter
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Of an operator's arguments: which are sent, and the share of it that others get of W ranks.
_GATHERS = ("_allgather_base_", "allgather_")
_SCATTERS = ("_reduce_scatter_base_", "reduce_scatter_", "alltoall_base_", "alltoall_")


class Sent(TorchDispatchMode):
    """`bytes`: what this rank sent to others, by the name of the collective."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":
            self._count(func._schema.name.partition("::")[2], args)
        return found

    def _count(self, name: str, args: Any) -> None:
        world = dist.get_world_size()
        if name not in (*_GATHERS, *_SCATTERS):
            return
        size = sum(
            each.numel() * each.element_size()
            for each in tree_leaves(args[1])  # the output comes first
            if isinstance(each, Tensor)
        )
        self.bytes[name] += size * (world - 1) // (1 if name in _GATHERS else world)
