"""The steps of Muon on sharded matrices."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from trainrig.optim.elementwise import to_local
from trainrig.optim.groups import ParameterGroup
from trainrig.optim.whole_matrix import Rows, WholeTask, compute_whole, split_into_rounds


class MuonFormula(Protocol):
    """What a step has to know of `trainrig.optim.Muon`."""

    @property
    def lr(self) -> float:
        """Peak rate."""
        ...

    @property
    def weight_decay(self) -> float:
        """Of groups that have none of their own."""
        ...

    @property
    def products(self) -> str:
        """Name of the dtype that orthogonalisation multiplies in."""
        ...

    @property
    def state(self) -> str:
        """Name of the dtype of the average."""
        ...

    def compute_direction(self, gradient: Tensor, average: Tensor) -> Tensor:
        """Move `average` by a piece's `gradient`; where to step from."""
        ...

    def build_orthogonaliser(self, dtype: Any) -> Callable[[Tensor], tuple[Tensor, ...]]:
        """What makes the singular values of a whole matrix nearly 1."""
        ...

    def step_scale(self, shape: tuple[int, ...]) -> float:
        """What the rate is multiplied by."""
        ...


class MuonSteps(torch.optim.Optimizer):
    """Takes Muon's steps on `groups`, all of which are matrices or stacks of them."""

    def __init__(self, groups: list[ParameterGroup], settings: MuonFormula) -> None:
        super().__init__(groups, {"lr": settings.lr, "weight_decay": settings.weight_decay})
        self._settings = settings

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step on every matrix that has a gradient."""
        settings = self._settings
        orthogonalise = settings.build_orthogonaliser(getattr(torch, settings.products))
        for group in self.param_groups:
            for parameters in split_into_rounds(p for p in group["params"] if p.grad is not None):
                tasks = []
                for parameter in parameters:
                    assert parameter.grad is not None
                    state = self.state[parameter]
                    if not state:
                        dtype = getattr(torch, settings.state)
                        state["momentum"] = torch.zeros_like(parameter, dtype=dtype)
                    along = settings.compute_direction(
                        to_local(parameter.grad), to_local(state["momentum"])
                    )
                    rows = Rows(along, parameter.shape[0])
                    tasks.append(WholeTask([rows], [rows], orthogonalise))
                compute_whole(parameters[0], tasks)
                for parameter, task in zip(parameters, tasks, strict=True):
                    rate = group["lr"] * settings.step_scale(tuple(parameter.shape))
                    weight = to_local(parameter).mul_(1 - group["lr"] * group["weight_decay"])
                    weight.sub_(task.outputs[0].local.mul_(rate))
