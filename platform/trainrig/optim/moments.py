"""What Adam and AdamW share: two moments of the gradient, kept in float32 or bfloat16."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.optim.groups import ParameterGroup

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Momentum = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
StateDtype = Literal["float32", "bfloat16"]
STATE_BYTES: dict[StateDtype, int] = {"float32": 4, "bfloat16": 2}
# An average that moves by less than half a unit of bfloat16's 8 bits stands still. Of a decay rate
# above this one that is most of its steps.
LARGEST_ROUNDED_DECAY = 0.99


def check_rounded(state: StateDtype, *decays: float) -> None:
    """Raise ValueError if averages of such decay rates would stand still in `state`."""
    if state == "bfloat16" and max(decays) > LARGEST_ROUNDED_DECAY:
        raise ValueError(
            f"state = 'bfloat16' rounds away what a decay rate of {max(decays)} adds in a step; "
            f"set it to {LARGEST_ROUNDED_DECAY} or below, or state = 'float32'"
        )


class TwoMoments(Settings):
    """Adam's settings, whose defaults its forms choose."""

    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    decoupled: ClassVar[bool]  # whether weight decay is apart from the gradient

    lr: Positive = 3e-4  # peak learning rate
    # Decay rates of the averages of the gradient and of its square.
    betas: tuple[Momentum, Momentum] = (0.9, 0.95)
    epsilon: Positive = 1e-8  # number added to the denominator, against division by 0
    # Weight decay of a step, times the learning rate.
    weight_decay: Decay = 0.1
    # Number format of both averages between steps: bfloat16 halves their memory.
    state: StateDtype = "float32"

    @model_validator(mode="after")
    def _averages_move(self) -> Self:
        check_rounded(self.state, *self.betas)
        return self

    def state_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        """Bytes that a parameter's two averages take."""
        elements = 1
        for size in shape:
            elements *= size
        return 2 * STATE_BYTES[self.state] * elements

    def build(self, groups: list[ParameterGroup]) -> "torch.optim.Optimizer":
        """The optimizer over `groups`, at its peak rate; the loop sets each step's.

        Weights must not depend on how they are sharded, so the update of a piece of a tensor has to
        be bit for bit the piece of its update. torch's fused kernel for the CPU is not like that:
        it rounds the last elements, those that fill no vector, otherwise. So it is used on CUDA
        alone; on the CPU it would save a few percent of a step.
        """
        import torch  # takes seconds, which reading a run file should not

        if self.state != "float32":
            from trainrig.optim.elementwise import ElementwiseOptimizer

            return ElementwiseOptimizer(groups, self)
        parameters = [parameter for group in groups for _, parameter in group["params"]]
        on_cuda = all(parameter.is_cuda for parameter in parameters)
        form = torch.optim.AdamW if self.decoupled else torch.optim.Adam
        return form(
            groups,
            lr=self.lr,
            betas=self.betas,
            eps=self.epsilon,
            weight_decay=self.weight_decay,
            fused=on_cuda,
        )

    def update(self, weight: "Tensor", slope: "Tensor", state: dict[str, Any], group: Any) -> None:
        """One step on a piece of a parameter, whose averages are rounded once it is made."""
        beta1, beta2 = self.betas
        rate, decay, step = group["lr"], group["weight_decay"], float(state["step"])
        if decay and self.decoupled:
            weight.mul_(1 - rate * decay)
        elif decay:
            slope = slope + weight * decay
        first = state["exp_avg"].float().mul_(beta1).add_(slope * (1 - beta1))
        second = state["exp_avg_sq"].float().mul_(beta2).add_(slope.square() * (1 - beta2))
        state["exp_avg"].copy_(first)
        state["exp_avg_sq"].copy_(second)
        root = second.div_(1 - beta2**step).sqrt_().add_(self.epsilon)
        weight.sub_(first.div_(root).mul_(rate / (1 - beta1**step)))
