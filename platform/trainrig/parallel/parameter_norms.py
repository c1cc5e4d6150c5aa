"""Norms of gradients, weights and updates, by layer and by kind of parameter.

Training is bit-identical with or without them. The squares of a rank's slices are added over ranks
in float64: the figures of different layouts agree to rounding, not to the last bit.

Shapes: P parameters.
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
    """Return the positions in `names` of the parameters of each layer and of each kind.

    A layer is `layers/03`. A kind is `kinds/attention`: the part of a layer, or of the model, that
    the parameter belongs to.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(names):
        found = LAYER.fullmatch(name)
        if found:
            groups[f"layers/{int(found[1]):02d}"].append(number)
        part = (found[2] if found else name).partition(".")[0]
        groups[f"kinds/{'norm' if 'norm' in part else part}"].append(number)
    return dict(groups)


class ParameterNorms:
    """Norms of the parameters of one rank's model; all ranks call each method together."""

    def __init__(
        self,
        model: nn.Module,
        shared: SharedLayers | None = None,
        stage: StageShare | None = None,
    ) -> None:
        """Collect the trainable parameters of `model`.

        `shared`: how ranks share the layers of `model`; None: each rank has whole layers. `stage`:
        the part of the whole model that `model` is; None: all of it.
        """
        own = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        names = sorted(own if stage is None else stage.whole)
        counted = [name for name in own if stage is None or stage.counts(name)]
        self._groups = group_parameters(names)
        self._count = len(names)
        self._parameters = [own[name] for name in counted]
        self._places = [names.index(name) for name in counted]
        held = [_count_copies(parameter) for parameter in self._parameters]
        if shared:
            ranks = shared.axis.size
            alike = (shared.is_alike(name) for name in counted)
            held = [
                n * ranks if shared_by_all else n
                for n, shared_by_all in zip(held, alike, strict=True)
            ]
        device = self._parameters[0].device if self._parameters else None
        self._held_P = torch.tensor(held, dtype=torch.float64, device=device)
        self._before: list[Tensor] = []
        self._squares: list[Tensor] = []  # sums of squares [P] of gradients and of weights

    def begin(self) -> None:
        """Measure gradients and weights just before an update, with gradients not clipped yet.

        Keeps a copy of this rank's slices of the weights until `finish`.
        """
        weights = self._list_weights()
        self._before = [torch.empty_like(weight) for weight in weights]
        torch._foreach_copy_(self._before, weights)
        # An objective may leave a parameter unused.
        gradients = [
            weight.new_zeros(0) if parameter.grad is None else _to_local(parameter.grad.detach())
            for parameter, weight in zip(self._parameters, weights, strict=True)
        ]
        self._squares = [self._sum_squares(gradients), self._sum_squares(weights)]

    def finish(self, unread: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the norms of the update just made, by name, with the values of `unread`.

        `unread` are scalars on the device that are read in the same transfer, because each transfer
        waits for the device.
        """
        updates = self._before
        torch._foreach_neg_(updates)
        torch._foreach_add_(updates, self._list_weights())
        mine_3P = torch.stack([*self._squares, self._sum_squares(updates)])
        squares_3P = mine_3P.new_zeros(3, self._count)
        squares_3P[:, self._places] = mine_3P
        self._before = []
        self._squares = []
        if dist.get_world_size() > 1:
            dist.all_reduce(squares_3P)
        beside = [scalar.double()[None] for scalar in unread.values()]
        read = torch.cat([squares_3P.flatten(), *beside]).cpu().numpy()
        squares, values = np.split(read, [3 * self._count])
        named = dict(zip(unread, values.tolist(), strict=True))
        return named | compute_named_norms(self._groups, squares.reshape(3, -1))

    def _list_weights(self) -> list[Tensor]:
        return [_to_local(parameter.detach()) for parameter in self._parameters]

    def _sum_squares(self, tensors: list[Tensor]) -> Tensor:
        """Return this rank's part [P] of the sum of squares of each parameter's tensor."""
        norms_P = torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float64))
        return norms_P.square() / self._held_P


def compute_named_norms(
    groups: Mapping[str, Sequence[int]], squares_3P: NDArray[np.float64]
) -> dict[str, float]:
    """Return the norms of each group, from the squares [3, P] of gradients, weights and updates."""
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
    """Return the number of ranks that hold the same slice of `parameter`."""
    return count_copies(parameter) if isinstance(parameter, DTensor) else dist.get_world_size()
