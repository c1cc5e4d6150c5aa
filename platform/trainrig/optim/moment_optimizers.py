"""Optimizers with moments of each weight's gradient: Adam, AdamW, Lion and SGD with momentum.

The moments of Adam (Kingma & Ba 2015, arXiv:1412.6980) and AdamW, its variant with decoupled
weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101), are in float32 or bfloat16. Lion steps
by the sign of an interpolated momentum (Chen et al. 2023, arXiv:2302.06675, algorithm 2). SGD
with momentum: Sutskever et al. 2013.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainrig.optim.optimizer_settings import OptimizerSettings
from trainrig.optim.parameter_groups import ParameterGroup, elementwise_share

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from trainrig.optim.parameter_groups import OptimizerSet


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


class ElementwiseSettings(OptimizerSettings):
    """Base of optimizers whose step of an element depends on its own gradients alone."""

    elementwise: ClassVar[bool] = True

    if TYPE_CHECKING:  # subclasses declare these, `state` as the name of the dtype of the state
        state: str

        @property
        def state_names(self) -> Sequence[str]:
            """Names of the state tensors of each parameter, which have the parameter's shape."""

    def build(self, groups: list[ParameterGroup]) -> "torch.optim.Optimizer | OptimizerSet":
        """Build the optimizer over `groups` at its peak rate; the training loop sets the rates."""
        import torch  # here because torch is slow to import

        from trainrig.optim.elementwise import ElementwiseOptimizer

        dtype = getattr(torch, self.state)
        return ElementwiseOptimizer(groups, self, dtype, self.state_names, self.update)

    @abstractmethod
    def update(
        self, weight: "Tensor", gradient: "Tensor", state: dict[str, Any], group: Any
    ) -> None:
        """Change a piece of a parameter and its `state` in place; `state["step"]` counts from 1."""


class TwoMoments(ElementwiseSettings):
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
        return 2 * STATE_BYTES[self.state] * math.prod(shape)

    def build(self, groups: list[ParameterGroup]) -> "torch.optim.Optimizer | OptimizerSet":
        """Build the optimizer over `groups` at its peak rate; the training loop sets the rates.

        Weights must not depend on sharding: the update of a shard must have the same bits as that
        part of the whole tensor's update. torch's fused CUDA kernel has this property. The fused
        CPU kernel may round the last elements of a tensor differently if they do not fill a vector.
        Shards are cut between rows, so the CPU kernel gets only matrices with rows of whole
        vectors. torch's unfused steps update the other tensors.
        """
        if self.state != "float32":
            return super().build(groups)
        from trainrig.optim.parameter_groups import OptimizerSet

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
    from trainrig.optim.elementwise import lay_out_like, to_local

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            # A DTensor's own strides do not describe its local piece.
            if parameter.grad is not None and not to_local(parameter.grad).is_contiguous():
                rows = to_local(parameter.grad).contiguous()
                parameter.grad = lay_out_like(rows, parameter.grad)


class Adam(TwoMoments):
    """The Adam optimizer, with its paper's defaults (algorithm 1)."""

    decoupled: ClassVar[bool] = False

    kind: Literal["Adam"] = "Adam"
    # Decay rates of the averages of the gradient and of its square.
    betas: tuple[Momentum, Momentum] = (0.9, 0.999)
    # L2 penalty: the share of a weight that is added to its gradient, before both averages.
    weight_decay: Decay = 0.0


class AdamW(TwoMoments):
    """The AdamW optimizer, with Llama's defaults (Touvron et al. 2023, arXiv:2302.13971).

    Those are in section 2.3 and table 2 of the paper.
    """

    decoupled: ClassVar[bool] = True

    kind: Literal["AdamW"] = "AdamW"

    def width_share(self, role: str, name: str, shape: tuple[int, ...], multiple: float) -> float:
        """Return the factor of the learning rate in a wider model.

        `epsilon` is not scaled: it must be well below the size of gradients.
        """
        return elementwise_share(role, multiple)


class Lion(ElementwiseSettings):
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
        """Return the factor of the learning rate in a wider model.

        A sign is as large as Adam's step, so the rule is the same.
        """
        return elementwise_share(role, multiple)

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


class SGD(ElementwiseSettings):
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
