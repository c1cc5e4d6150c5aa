"""Elementwise optimizers: each number depends on its own history alone, so any slice is whole."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainrig.optim.optimizer_settings import OptimizerSettings
from trainrig.optim.parameter_groups import ParameterGroup


class ElementwiseOptimizer(torch.optim.Optimizer):
    """Optimizer that applies an update to this rank's slices of the parameters."""

    def __init__(
        self,
        groups: list[ParameterGroup],
        settings: OptimizerSettings,
        dtype: torch.dtype,
        state_names: Sequence[str],
        update: Callable[[Tensor, Tensor, dict[str, Tensor], ParameterGroup], None],
    ) -> None:
        """Update by `update` of `moment_optimizers.ElementwiseSettings`, with state of `dtype`."""
        super().__init__(groups, {"lr": settings.lr, "weight_decay": settings.weight_decay})
        self._dtype = dtype
        self._state_names = state_names
        self._update = update

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step on every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    for name in self._state_names:
                        state[name] = torch.zeros_like(parameter, dtype=self._dtype)
                state["step"] += 1
                pieces = {name: to_local(value) for name, value in state.items()}
                self._update(to_local(parameter), to_local(parameter.grad), pieces, group)


def to_local(tensor: Tensor) -> Tensor:
    """Return this rank's slice of `tensor` without a copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def lay_out_like(local: Tensor, like: Tensor) -> Tensor:
    """Return `local` as this rank's slice of a tensor that is sharded as `like`.

    Returns `local` itself if `like` is not sharded.
    """
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
