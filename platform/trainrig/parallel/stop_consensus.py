"""What all ranks decide together, though only some of them may know of it."""

from datetime import timedelta

import torch
import torch.distributed as dist


class StopConsensus:
    """Yes or no, the same answer on every rank.

    It has a gloo group of its own: a question asked between two steps on a GPU neither waits for
    the GPU nor gets between the collectives of the gradients.
    """

    def __init__(self, timeout: timedelta) -> None:
        """Every rank must call it. A rank that is not heard for `timeout` is taken for dead."""
        self._alone = dist.get_world_size() == 1
        self._group = None if self._alone else dist.new_group(backend="gloo", timeout=timeout)

    def any(self, mine: bool) -> bool:
        """Whether any rank says yes; every rank must ask."""
        if self._alone:
            return mine
        answer = torch.tensor(int(mine))
        dist.all_reduce(answer, dist.ReduceOp.MAX, group=self._group)
        return bool(answer)
