"""What Adam and AdamW share: two moments of the gradient, kept in float32 or bfloat16."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.optim.groups import ParameterGroup

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from trainrig.optim.optimizer_set import OptimizerSet

Momentum = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
StateDtype = Literal["float32", "bfloat16"]
STATE_BYTES: dict[StateDtype, int] = {"float32": 4, "bfloat16": 2}
# An average that moves by less than half a unit of bfloat16's 8 bits stands still. Of a decay rate
# above this one that is most of its steps.
LARGEST_ROUNDED_DECAY = 0.99
# Numbers that torch's fused steps on the CPU take at a time, and share out among threads: 64 bytes,
# which is the widest vector of float32 (AVX-512).
VECTOR = 16


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
    def _check_betas(self) -> Self:
        check_rounded(self.state, *self.betas)
        return self

    def count_state_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        """Bytes that a parameter's two averages take."""
        elements = 1
        for size in shape:
            elements *= size
        return 2 * STATE_BYTES[self.state] * elements

    def build(self, groups: list[ParameterGroup]) -> "torch.optim.Optimizer | OptimizerSet":
        """The optimizer over `groups`, at its peak rate; the loop sets each step's.

        Weights must not depend on how they are sharded, so the update of a piece of a tensor has to
        be bit for bit the piece of its update. On CUDA torch's fused kernel is like that. On the
        CPU it may round the last elements, those that fill no vector, otherwise: there it takes
        the matrices whose rows are whole vectors, which leave no such elements at any cut between
        rows, and torch's plain steps take the rest.
        """
        if self.state != "float32":
            from trainrig.optim.elementwise import ElementwiseOptimizer

            return ElementwiseOptimizer(groups, self)
        from trainrig.optim.optimizer_set import OptimizerSet

        wide: list[ParameterGroup] = []
        rest: list[ParameterGroup] = []
        for group in groups:
            taken = [_is_fused(each) for _, each in group["params"]]
            for part, fused in ((wide, True), (rest, False)):
                pairs = [p for p, own in zip(group["params"], taken, strict=True) if own is fused]
                if pairs:
                    part.append(group | {"params": pairs})
        parts = [self._build_torch_optimizer(part, part is wide) for part in (wide, rest) if part]
        return OptimizerSet(parts)

    def _build_torch_optimizer(
        self, groups: list[ParameterGroup], fused: bool
    ) -> "torch.optim.Optimizer":
        import torch  # takes seconds, which reading a run file should not

        form = torch.optim.AdamW if self.decoupled else torch.optim.Adam
        built = form(
            groups,
            lr=self.lr,
            betas=self.betas,
            eps=self.epsilon,
            weight_decay=self.weight_decay,
            fused=fused,
        )
        if fused:
            built.register_step_pre_hook(_lay_out_gradients)
        return built

    def update(
        self, weight: "Tensor", gradient: "Tensor", state: dict[str, Any], group: Any
    ) -> None:
        """One step on a piece of a parameter, whose averages are rounded once it is made."""
        beta1, beta2 = self.betas
        rate, decay, step = group["lr"], group["weight_decay"], float(state["step"])
        if decay and self.decoupled:
            weight.mul_(1 - rate * decay)
        elif decay:
            gradient = gradient + weight * decay
        first = state["exp_avg"].float().mul_(beta1).add_(gradient * (1 - beta1))
        second = state["exp_avg_sq"].float().mul_(beta2).add_(gradient.square() * (1 - beta2))
        state["exp_avg"].copy_(first)
        state["exp_avg_sq"].copy_(second)
        root = second.div_(1 - beta2**step).sqrt_().add_(self.epsilon)
        weight.sub_(first.div_(root).mul_(rate / (1 - beta1**step)))


def _is_fused(parameter: "nn.Parameter") -> bool:
    """Whether torch's fused kernel rounds all pieces of `parameter`, cut between rows, alike."""
    from trainrig.optim.elementwise import to_local

    if parameter.is_cuda:
        return True
    piece = to_local(parameter)
    return piece.ndim > 1 and piece.shape[-1] % VECTOR == 0 and piece.is_contiguous()


def _lay_out_gradients(optimizer: "torch.optim.Optimizer", *_: Any) -> None:
    """Make all gradients contiguous: the fused kernel for the CPU reads them as if they were."""
    from torch.distributed.tensor import DTensor

    from trainrig.optim.elementwise import to_local

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None or to_local(parameter.grad).is_contiguous():
                continue
            rows = to_local(parameter.grad).contiguous()
            if isinstance(parameter.grad, DTensor):  # whose own strides say nothing of its piece's
                rows = DTensor.from_local(
                    rows,
                    parameter.grad.device_mesh,
                    parameter.grad.placements,
                    run_check=False,
                    shape=parameter.grad.shape,
                    stride=parameter.grad.stride(),
                )
            parameter.grad = rows
