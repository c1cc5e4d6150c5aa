"""Base class of Adam and AdamW, whose two moments are stored in float32 or bfloat16.

The moments are the running averages of the gradient and of its square (`exp_avg`, `exp_avg_sq`).
"""

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
# bfloat16 has 8 significant bits: an average that changes by less than half a unit in the last
# place does not change at all. Above this decay rate that happens in most steps.
LARGEST_ROUNDED_DECAY = 0.99
# Numbers that torch's fused CPU step processes at a time and distributes over threads: 64 bytes,
# the widest vector of float32 (AVX-512).
VECTOR = 16


def check_rounded(state: StateDtype, *decays: float) -> None:
    """Raise ValueError if rounding to `state` would stop averages with these decay rates."""
    if state == "bfloat16" and max(decays) > LARGEST_ROUNDED_DECAY:
        raise ValueError(
            "state = 'bfloat16' rounds away the changes of an average with decay rate "
            f"{max(decays)}; set the rate to {LARGEST_ROUNDED_DECAY} or below, or state = 'float32'"
        )


class TwoMoments(Settings):
    """Settings of Adam and AdamW, which set their own defaults."""

    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    decoupled: ClassVar[bool]  # True if weight decay is decoupled from the gradient

    lr: Positive = 3e-4  # peak learning rate
    # Decay rates of the averages of the gradient and of its square.
    betas: tuple[Momentum, Momentum] = (0.9, 0.95)
    epsilon: Positive = 1e-8  # number added to the denominator, against division by 0
    # Weight decay: each step shrinks the weights by this share times the learning rate.
    weight_decay: Decay = 0.1
    # Number format of both averages between steps; bfloat16 halves their memory.
    state: StateDtype = "float32"

    @model_validator(mode="after")
    def _check_betas(self) -> Self:
        check_rounded(self.state, *self.betas)
        return self

    def count_state_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        """Return the bytes of a parameter's two averages."""
        elements = 1
        for size in shape:
            elements *= size
        return 2 * STATE_BYTES[self.state] * elements

    def build(self, groups: list[ParameterGroup]) -> "torch.optim.Optimizer | OptimizerSet":
        """Build the optimizer over `groups` at its peak rate; the training loop sets the rates.

        Weights must not depend on sharding: the update of a shard must have the same bits as that
        part of the whole tensor's update. torch's fused CUDA kernel has this property. The fused
        CPU kernel may round the last elements of a tensor differently if they do not fill a vector.
        Shards are cut between rows, so the CPU kernel gets only matrices with rows of whole
        vectors. torch's unfused steps update the other tensors.
        """
        if self.state != "float32":
            from trainrig.optim.elementwise import ElementwiseOptimizer

            return ElementwiseOptimizer(groups, self)
        from trainrig.optim.optimizer_set import OptimizerSet

        fusable: list[ParameterGroup] = []
        rest: list[ParameterGroup] = []
        for group in groups:
            flags = [_is_fused(parameter) for _, parameter in group["params"]]
            for part, fused in ((fusable, True), (rest, False)):
                pairs = [p for p, flag in zip(group["params"], flags, strict=True) if flag is fused]
                if pairs:
                    part.append(group | {"params": pairs})
        parts = [
            self._build_torch_optimizer(part, part is fusable) for part in (fusable, rest) if part
        ]
        return OptimizerSet(parts)

    def _build_torch_optimizer(
        self, groups: list[ParameterGroup], fused: bool
    ) -> "torch.optim.Optimizer":
        import torch  # here because torch is slow to import

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
        """Take one step on a piece of a parameter, in place.

        The step uses the new averages in float32; `state` stores them rounded to its number format.
        """
        beta1, beta2 = self.betas
        rate = group["lr"]
        decay = group["weight_decay"]
        step = float(state["step"])
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
    """Return whether torch's fused kernel gives each shard the bits of the whole `parameter`."""
    from trainrig.optim.elementwise import to_local

    if parameter.is_cuda:
        return True
    piece = to_local(parameter)
    return piece.ndim > 1 and piece.shape[-1] % VECTOR == 0 and piece.is_contiguous()


def _lay_out_gradients(optimizer: "torch.optim.Optimizer", *_: Any) -> None:
    """Make all gradients contiguous, because the fused CPU kernel reads them as if they were."""
    from torch.distributed.tensor import DTensor

    from trainrig.optim.elementwise import to_local

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None or to_local(parameter.grad).is_contiguous():
                continue
            rows = to_local(parameter.grad).contiguous()
            # a DTensor's own strides do not describe its local piece
            if isinstance(parameter.grad, DTensor):
                rows = DTensor.from_local(
                    rows,
                    parameter.grad.device_mesh,
                    parameter.grad.placements,
                    run_check=False,
                    shape=parameter.grad.shape,
                    stride=parameter.grad.stride(),
                )
            parameter.grad = rows
