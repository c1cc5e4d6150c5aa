"""Stochastic gradient descent with momentum (Sutskever et al. 2013)."""

import math
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from trainrig.config import Settings
from trainrig.optim.groups import ParameterGroup
from trainrig.optim.moments import STATE_BYTES, Decay, Momentum, Positive, StateDtype

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class SGD(Settings):
    """Stochastic gradient descent, along the gradient or a decaying sum of gradients."""

    kind: Literal["SGD"] = "SGD"
    lr: Positive = 0.01  # peak learning rate
    momentum: Momentum = 0.9  # share of the sum of gradients that a step keeps; 0: no momentum
    # Whether to use Nesterov momentum.
    nesterov: bool = False
    # L2 penalty: the share of a weight that is added to its gradient.
    weight_decay: Decay = 0.0
    # Number format of the sum between steps; bfloat16 halves its memory.
    state: StateDtype = "float32"

    @model_validator(mode="after")
    def _check_nesterov(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov = true needs momentum above 0; 0.9 is usual")
        return self

    @property
    def state_names(self) -> tuple[str, ...]:
        """The sum of gradients, if one is kept."""
        return ("momentum",) if self.momentum else ()

    def count_state_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        """Return the bytes of a parameter's sum of gradients."""
        return math.prod(shape) * STATE_BYTES[self.state] if self.momentum else 0

    def build(self, groups: list[ParameterGroup]) -> "torch.optim.Optimizer":
        """Build the optimizer over `groups` at its peak rate; the training loop sets the rates."""
        # here because torch is slow to import
        from trainrig.optim.elementwise import ElementwiseOptimizer

        return ElementwiseOptimizer(groups, self)

    def update(
        self, weight: "Tensor", gradient: "Tensor", state: dict[str, Any], group: Any
    ) -> None:
        """Take one step on a piece of a parameter."""
        if group["weight_decay"]:
            gradient = gradient + weight * group["weight_decay"]
        if self.momentum:
            total = state["momentum"].float().mul_(self.momentum).add_(gradient)
            state["momentum"].copy_(total)
            gradient = gradient + total * self.momentum if self.nesterov else total
        weight.sub_(gradient * group["lr"])
