"""Lion: the sign of an interpolated momentum (Chen et al. 2023, arXiv:2302.06675, algorithm 2)."""

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
    """Each weight moves by the learning rate, up or down: half of AdamW's memory.

    Its rate should be 3 to 10 times below AdamW's, its decay as much above (same, section 5).
    """

    state_names: ClassVar[tuple[str, ...]] = ("exp_avg",)

    kind: Literal["Lion"] = "Lion"
    lr: Positive = 1e-4  # peak learning rate
    # Shares of the average: in the direction of a step, and in what is kept of it.
    betas: tuple[Momentum, Momentum] = (0.9, 0.99)
    weight_decay: Decay = 0.3  # weight decay of a step, times the learning rate
    # Number format of the average between steps.
    state: StateDtype = "float32"

    @model_validator(mode="after")
    def _check_betas(self) -> Self:
        check_rounded(self.state, *self.betas)
        return self

    def count_state_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        """Bytes of a parameter's average."""
        return math.prod(shape) * STATE_BYTES[self.state]

    def width_share(self, role: str, name: str, shape: tuple[int, ...], multiple: float) -> float:
        """See Transferable: a sign is as large as Adam's step."""
        return elementwise_share(role, multiple)

    def build(self, groups: list[ParameterGroup]) -> "torch.optim.Optimizer":
        """The optimizer over `groups`, at its peak rate; the loop sets each step's."""
        from trainrig.optim.elementwise import ElementwiseOptimizer  # torch, which takes seconds

        return ElementwiseOptimizer(groups, self)

    def update(
        self, weight: "Tensor", gradient: "Tensor", state: dict[str, Any], group: Any
    ) -> None:
        """One step on a piece of a parameter."""
        (along, kept), average = self.betas, state["exp_avg"].float()
        if group["weight_decay"]:
            weight.mul_(1 - group["lr"] * group["weight_decay"])
        direction = (average * along).add_(gradient * (1 - along)).sign_()
        weight.sub_(direction.mul_(group["lr"]))
        state["exp_avg"].copy_(average.mul_(kept).add_(gradient * (1 - kept)))
