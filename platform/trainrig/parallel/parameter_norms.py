"""Norms of gradients, weights and updates, by layer and by kind of parameter.

They are read, never written: training gives the same bits with them or without. The squares of a
rank's slices are added over ranks in float64, so that the figures of different layouts agree to
rounding, not to the last bit.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainrig.parallel.fsdp import copies
from trainrig.parallel.pipeline.share import StageShare
from trainrig.parallel.tensor.whole import SharedLayers

LAYER = re.compile(r"layers\.(\d+)\.(.*)")


def groups_of(names: Iterable[str]) -> dict[str, list[int]]:
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
        self._groups, self._count = groups_of(names), len(names)
        self._parameters = [own[name] for name in counted]
        self._places = [names.index(name) for name in counted]
        self._held = [_copies(each) for each in self._parameters]
        if shared:
            ranks = shared.axis.size
            alike = (shared.is_alike(name) for name in counted)
            self._held = [
                n * ranks if each else n for n, each in zip(self._held, alike, strict=True)
            ]
        self._before: list[Tensor] = []
        self._squares: list[Tensor] = []  # of gradients and weights, [P] each

    def begin(self) -> None:
        """An update is about to be made of the gradients that lie with the parameters, which are
        not clipped yet. Keeps a copy of this rank's slices of the weights until `finish`."""
        gradients = [each.grad for each in self._parameters]
        self._before = [_local(each.detach()).clone() for each in self._parameters]
        self._squares = [self._squares_of(gradients), self._squares_of(self._parameters)]

    def finish(self) -> dict[str, float]:
        """The update was made: the figures of it, by name."""
        updates = []
        for parameter, before in zip(self._parameters, self._before, strict=True):
            updates.append(before.neg_().add_(_local(parameter.detach())))
        mine_3P = torch.stack([*self._squares, self._squares_of(updates)])
        squares_3P = mine_3P.new_zeros(3, self._count)
        squares_3P[:, self._places] = mine_3P
        self._before, self._squares = [], []
        if dist.get_world_size() > 1:
            dist.all_reduce(squares_3P)
        return named_norms(self._groups, squares_3P.cpu())

    def _squares_of(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """[P] this rank's part of the sum of squares of each parameter's tensor."""
        parts = []
        for parameter, tensor, held in zip(self._parameters, tensors, self._held, strict=True):
            if tensor is None:  # of a parameter that the objective does not use
                parts.append(torch.zeros((), dtype=torch.float64, device=parameter.device))
                continue
            norm = torch.linalg.vector_norm(_local(tensor.detach()), dtype=torch.float64)
            parts.append(norm.square() / held)
        return torch.stack(parts)


def named_norms(groups: Mapping[str, Sequence[int]], squares_3P: Tensor) -> dict[str, float]:
    """The norms of each group, from the squares of gradients, weights and updates by parameter."""
    values: dict[str, float] = {}
    for group, numbers in groups.items():
        gradient, weight, update = squares_3P[:, list(numbers)].sum(1).sqrt().tolist()
        values[f"{group}/grad_norm"] = gradient
        values[f"{group}/weight_norm"] = weight
        values[f"{group}/update_norm"] = update
        if weight:
            values[f"{group}/update_ratio"] = update / weight
    return values


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _copies(parameter: Tensor) -> int:
    """How many ranks hold the same slice of `parameter`."""
    return copies(parameter) if isinstance(parameter, DTensor) else dist.get_world_size()
