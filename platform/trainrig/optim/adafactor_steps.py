"""Adafactor's steps on sharded tensors."""

import functools
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import zeros as sharded_zeros

from trainrig.optim.elementwise import to_local
from trainrig.optim.groups import ParameterGroup
from trainrig.optim.whole_matrix import Rows, WholeTask, compute_whole, split_into_rounds

AVERAGES = ("exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq")


class AdafactorFormula(Protocol):
    """Protocol of the settings that a step reads, implemented by `trainrig.optim.Adafactor`."""

    @property
    def lr(self) -> float:
        """The peak learning rate."""
        ...

    @property
    def weight_decay(self) -> float:
        """The weight decay of groups without their own."""
        ...

    def compute_step(
        self,
        weight: Tensor,
        gradient: Tensor,
        averages: tuple[Tensor, ...],
        step: float,
        rate: float,
        weight_decay: float,
    ) -> tuple[Tensor, ...]:
        """Return the amount to subtract from a whole `weight`, and the new averages."""
        ...


class AdafactorSteps(torch.optim.Optimizer):
    """Optimizer that applies Adafactor's steps to `groups`."""

    def __init__(self, groups: list[ParameterGroup], settings: AdafactorFormula) -> None:
        super().__init__(groups, {"lr": settings.lr, "weight_decay": settings.weight_decay})
        self._settings = settings

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step on every parameter that has a gradient."""
        for group in self.param_groups:
            for parameters in split_into_rounds(p for p in group["params"] if p.grad is not None):
                tasks = [self._build_task(parameter, group) for parameter in parameters]
                compute_whole(parameters[0], tasks)
                for parameter, task in zip(parameters, tasks, strict=True):
                    to_local(parameter).sub_(task.outputs[0].local)

    def _build_task(self, parameter: Tensor, group: ParameterGroup) -> WholeTask:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state.update(_make_averages(parameter))
        state["step"] += 1
        averages = [Rows.of(state[name]) for name in AVERAGES if name in state]
        assert parameter.grad is not None
        gradient = Rows.of(parameter.grad)
        change = Rows(torch.empty_like(gradient.local), gradient.count)
        compute = functools.partial(
            self._compute, float(state["step"]), group["lr"], group["weight_decay"]
        )
        return WholeTask([Rows.of(parameter), gradient, *averages], [change, *averages], compute)

    def _compute(
        self,
        step: float,
        rate: float,
        decay: float,
        weight: Tensor,
        gradient: Tensor,
        *averages: Tensor,
    ) -> tuple[Tensor, ...]:
        return self._settings.compute_step(weight, gradient, averages, step, rate, decay)


def _make_averages(parameter: Tensor) -> dict[str, Tensor]:
    """Return a parameter's initial averages, sliced along dimension 0 as the parameter is."""
    if parameter.ndim < 2:
        return {"exp_avg_sq": torch.zeros_like(parameter)}
    shapes = {
        "exp_avg_sq_row": parameter.shape[:-1],
        "exp_avg_sq_col": parameter.shape[:-2] + parameter.shape[-1:],
    }
    return {name: _make_zeros(shape, parameter) for name, shape in shapes.items()}


def _make_zeros(shape: torch.Size, like: Tensor) -> Tensor:
    if isinstance(like, DTensor):
        made: Tensor = sharded_zeros(
            shape, device_mesh=like.device_mesh, placements=like.placements
        )
        return made
    return torch.zeros(shape, device=like.device)
