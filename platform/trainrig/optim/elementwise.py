"""Optimizers each of whose numbers depends on its own past alone, so that any slice is a whole."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainrig.optim.groups import ParameterGroup


class Update(Protocol):
    """Settings of an optimizer that know its formula."""

    @property
    def lr(self) -> float:
        """Peak rate."""
        ...

    @property
    def weight_decay(self) -> float:
        """Of groups that have none of their own."""
        ...

    @property
    def state(self) -> str:
        """Name of the dtype of what is kept."""
        ...

    @property
    def state_names(self) -> Sequence[str]:
        """What is kept of each parameter, of its shape."""
        ...

    def update(self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: Any) -> None:
        """Change `weight` and `state` in place; `state["step"]` counts from 1."""
        ...


class ElementwiseOptimizer(torch.optim.Optimizer):
    """Takes the steps of an `Update` on this rank's slices of the parameters."""

    def __init__(self, groups: list[ParameterGroup], settings: Update) -> None:
        super().__init__(groups, {"lr": settings.lr, "weight_decay": settings.weight_decay})
        self._settings = settings

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step on every parameter that has a gradient."""
        dtype = getattr(torch, self._settings.state)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    for name in self._settings.state_names:
                        state[name] = torch.zeros_like(parameter, dtype=dtype)
                state["step"] += 1
                pieces = {name: to_local(value) for name, value in state.items()}
                self._settings.update(to_local(parameter), to_local(parameter.grad), pieces, group)


def to_local(tensor: Tensor) -> Tensor:
    """This rank's slice of `tensor`, not a copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def lay_out_like(local: Tensor, like: Tensor) -> Tensor:
    """`local` as this rank's slice of a tensor that is sliced as `like` is; itself, where that is
    whole."""
    if not isinstance(like, DTensor):
        return local
    return DTensor.from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
