"""Lion: steps by the sign of an interpolated momentum.

Chen et al. 2023, arXiv:2302.06675, algorithm 2.
"""

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from trainrig.config import Settings
from trainrig.optim.groups import ParameterGroup, elementwise_share
from trainrig.optim.moments import (
    STATE_BYTES,
    Decay,
    Momentum,
    Positive,
    StateDtype,
    check_rounded,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Lion(Settings):
    """Lion: each weight moves up or down by the learning rate; half the memory of AdamW.

    Its learning rate should be 3 to 10 times below AdamW's, and its weight decay as many times
    above (section 5 of the paper).
    """

    state_names: ClassVar[tuple[str, ...]] = ("exp_avg",)

    kind: Literal["Lion"] = "Lion"
    lr: Positive = 1e-4  # peak learning rate
    # Weights of the average: in the direction of a step, and in the update of the average.
    betas: tuple[Momentum, Momentum] = (0.9, 0.99)
    weight_decay: Decay = 0.3  # weight decay, multiplied by the learning rate
    # Number format of the average between steps; bfloat16 halves its memory.
    state: StateDtype = "float32"

    @model_validator(mode="after")
    def _check_betas(self) -> Self:
        check_rounded(self.state, *self.betas)
        return self

    def count_state_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        """Return the bytes of a parameter's average."""
        return math.prod(shape) * STATE_BYTES[self.state]

    def width_share(self, role: str, name: str, shape: tuple[int, ...], multiple: float) -> float:
        """Return the factor of the learning rate in a wider model. See `Transferable`.

        A sign is as large as Adam's step, so the rule is the same.
        """
        return elementwise_share(role, multiple)

    def build(self, groups: list[ParameterGroup]) -> "torch.optim.Optimizer":
        """Build the optimizer over `groups` at its peak rate; the training loop sets the rates."""
        # here because torch is slow to import
        from trainrig.optim.elementwise import ElementwiseOptimizer

        return ElementwiseOptimizer(groups, self)

    def update(
        self, weight: "Tensor", gradient: "Tensor", state: dict[str, Any], group: Any
    ) -> None:
        """Take one step on a piece of a parameter."""
        along, kept = self.betas
        average = state["exp_avg"].float()
        if group["weight_decay"]:
            weight.mul_(1 - group["lr"] * group["weight_decay"])
        direction = (average * along).add_(gradient * (1 - along)).sign_()
        weight.sub_(direction.mul_(group["lr"]))
        state["exp_avg"].copy_(average.mul_(kept).add_(gradient * (1 - kept)))
