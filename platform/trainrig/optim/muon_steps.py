"""Muon's steps on sharded matrices."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from trainrig.optim.elementwise import to_local
from trainrig.optim.groups import ParameterGroup
from trainrig.optim.whole_matrix import Rows, WholeTask, compute_whole, split_into_rounds


class MuonFormula(Protocol):
    """Protocol of the settings that a step reads, implemented by `trainrig.optim.Muon`."""

    @property
    def lr(self) -> float:
        """The peak learning rate."""
        ...

    @property
    def weight_decay(self) -> float:
        """The weight decay of groups without their own."""
        ...

    @property
    def products(self) -> str:
        """The name of the dtype of the products in orthogonalisation."""
        ...

    @property
    def state(self) -> str:
        """The name of the dtype of the average."""
        ...

    def compute_direction(self, gradient: Tensor, average: Tensor) -> Tensor:
        """Update `average` with a piece's `gradient`, and return the direction of the step."""
        ...

    def build_orthogonaliser(self, dtype: Any) -> Callable[[Tensor], tuple[Tensor, ...]]:
        """Return a function that makes the singular values of a whole matrix nearly 1."""
        ...

    def step_scale(self, shape: tuple[int, ...]) -> float:
        """Return the factor of the learning rate for a matrix of this shape."""
        ...


class MuonSteps(torch.optim.Optimizer):
    """Optimizer that applies Muon's steps to `groups` of matrices or stacks of them."""

    def __init__(self, groups: list[ParameterGroup], settings: MuonFormula) -> None:
        super().__init__(groups, {"lr": settings.lr, "weight_decay": settings.weight_decay})
        self._settings = settings

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step on every matrix that has a gradient."""
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
