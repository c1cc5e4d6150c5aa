"""Norms of gradients, weights and updates, by layer and by kind of parameter.

They are read, never written: training gives the same bits with them or without. The squares of a
rank's slices are added over ranks in float64, so that the figures of different layouts agree to
rounding, not to the last bit.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainrig.parallel.fsdp import count_copies
from trainrig.parallel.pipeline.share import StageShare
from trainrig.parallel.tensor.whole import SharedLayers

LAYER = re.compile(r"layers\.(\d+)\.(.*)")


def group_parameters(names: Iterable[str]) -> dict[str, list[int]]:
    """Which of the parameters called `names` are of each layer, `layers/03`, and of each kind,
    `kinds/attention`: the part of a layer, or of the model, that they belong to."""
    groups: dict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(names):
        found = LAYER.fullmatch(name)
        if found:
            groups[f"layers/{int(found[1]):02d}"].append(number)
        part = (found[2] if found else name).partition(".")[0]
        groups[f"kinds/{'norm' if 'norm' in part else part}"].append(number)
    return dict(groups)


class ParameterNorms:
    """Of one rank of a model; all ranks call each method together."""

    def __init__(
        self,
        model: nn.Module,
        shared: SharedLayers | None = None,
        stage: StageShare | None = None,
    ) -> None:
        """`shared`: how ranks share the layers of `model`; None: each has all of a layer. `stage`:
        what `model` is of a whole one; None: it is all of it."""
        own = {name: each for name, each in model.named_parameters() if each.requires_grad}
        names = sorted(own if stage is None else stage.whole)
        counted = [name for name in own if stage is None or stage.counts(name)]
        self._groups, self._count = group_parameters(names), len(names)
        self._parameters = [own[name] for name in counted]
        self._places = [names.index(name) for name in counted]
        held = [_count_copies(each) for each in self._parameters]
        if shared:
            ranks = shared.axis.size
            alike = (shared.is_alike(name) for name in counted)
            held = [n * ranks if each else n for n, each in zip(held, alike, strict=True)]
        device = self._parameters[0].device if self._parameters else None
        self._held_P = torch.tensor(held, dtype=torch.float64, device=device)
        self._before: list[Tensor] = []
        self._squares: list[Tensor] = []  # of gradients and weights, [P] each

    def begin(self) -> None:
        """An update is about to be made of the gradients that lie with the parameters, which are
        not clipped yet. Keeps a copy of this rank's slices of the weights until `finish`."""
        weights = self._list_weights()
        self._before = [torch.empty_like(each) for each in weights]
        torch._foreach_copy_(self._before, weights)
        # An objective may leave a parameter unused.
        gradients = [
            weight.new_zeros(0) if each.grad is None else _to_local(each.grad.detach())
            for each, weight in zip(self._parameters, weights, strict=True)
        ]
        self._squares = [self._sum_squares(gradients), self._sum_squares(weights)]

    def finish(self, unread: Mapping[str, Tensor]) -> dict[str, float]:
        """The update was made: the figures of it, by name, and those of `unread`, scalars which are
        read with them, as a device is waited for each time that something is."""
        updates = self._before
        torch._foreach_neg_(updates)
        torch._foreach_add_(updates, self._list_weights())
        mine_3P = torch.stack([*self._squares, self._sum_squares(updates)])
        squares_3P = mine_3P.new_zeros(3, self._count)
        squares_3P[:, self._places] = mine_3P
        self._before, self._squares = [], []
        if dist.get_world_size() > 1:
            dist.all_reduce(squares_3P)
        beside = [each.double()[None] for each in unread.values()]
        read = torch.cat([squares_3P.flatten(), *beside]).cpu().numpy()
        squares, values = np.split(read, [3 * self._count])
        named = dict(zip(unread, values.tolist(), strict=True))
        return named | compute_named_norms(self._groups, squares.reshape(3, -1))

    def _list_weights(self) -> list[Tensor]:
        return [_to_local(each.detach()) for each in self._parameters]

    def _sum_squares(self, tensors: list[Tensor]) -> Tensor:
        """[P] this rank's part of the sum of squares of each parameter's tensor."""
        norms_P = torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float64))
        return norms_P.square() / self._held_P


def compute_named_norms(
    groups: Mapping[str, Sequence[int]], squares_3P: NDArray[np.float64]
) -> dict[str, float]:
    """The norms of each group, from the squares of gradients, weights and updates by parameter."""
    values: dict[str, float] = {}
    for group, numbers in groups.items():
        gradient, weight, update = np.sqrt(squares_3P[:, list(numbers)].sum(1)).tolist()
        values[f"{group}/grad_norm"] = gradient
        values[f"{group}/weight_norm"] = weight
        values[f"{group}/update_norm"] = update
        if weight:
            values[f"{group}/update_ratio"] = update / weight
    return values


def _to_local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _count_copies(parameter: Tensor) -> int:
    """How many ranks hold the same slice of `parameter`."""
    return count_copies(parameter) if isinstance(parameter, DTensor) else dist.get_world_size()
