"""Optimizers that treat matrices as a whole: Adafactor and Muon, without torch.

Adafactor has second moments by row and column (Shazeer & Stern 2018, arXiv:1804.04235).

Muon orthogonalises the momentum of the matrices within layers.

Jordan et al. 2024 (kellerjordan.github.io/posts/muon); weight decay and the scale that allows
AdamW's learning rates: Liu et al. 2025, arXiv:2502.16982, section 2.2.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from trainrig.optim import moment_optimizers
from trainrig.optim.optimizer_settings import OptimizerSettings
from trainrig.optim.parameter_groups import RATE_SHARE, ParameterGroup

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from trainrig.optim.parameter_groups import OptimizerSet


class Adafactor(OptimizerSettings):
    """Adafactor, algorithms 4 and 5, with the schedule's learning rate instead of a relative step.

    For a matrix it keeps one number per row and one per column. Statistics of a whole tensor are
    computed by one owner rank, so no bit depends on the number of workers.
    """

    kind: Literal["Adafactor"] = "Adafactor"
    # peak learning rate, relative to the size of a weight tensor; the default is T5's
    lr: moment_optimizers.Positive = 0.01
    # Exponent of the decay rate of the averages, which is 1 - step^-decay.
    decay: float = Field(default=0.8, gt=0, le=1)
    # Maximum root mean square of a step, before the learning rate.
    clip: moment_optimizers.Positive = 1.0
    # Two constants: the number added to squared gradients, and the minimum root mean square of a
    # tensor that scales its steps.
    epsilons: tuple[moment_optimizers.Positive, moment_optimizers.Positive] = (1e-30, 1e-3)
    # Whether to multiply the learning rate by the root mean square of the tensor.
    scale_by_size: bool = True
    weight_decay: moment_optimizers.Decay = 0.0  # weight decay, multiplied by the learning rate

    def count_state_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        """Return the bytes of a parameter's averages."""
        elements = math.prod(shape)
        if len(shape) < 2:
            return 4 * elements
        return 4 * (elements // shape[-1] + elements // shape[-2])

    def build(self, groups: list[ParameterGroup]) -> "torch.optim.Optimizer":
        """Build the optimizer over `groups` at its peak rate; the training loop sets the rates."""
        # here because torch is slow to import
        from trainrig.optim.matrix_steps import AdafactorSteps

        return AdafactorSteps(groups, self, self.compute_step)

    def compute_step(
        self,
        weight: "Tensor",
        gradient: "Tensor",
        averages: "tuple[Tensor, ...]",
        step: float,
        rate: float,
        weight_decay: float,
    ) -> "tuple[Tensor, ...]":
        """Return the amount to subtract from a whole `weight`, and the new averages.

        A matrix has averages of the squares of its rows [..., R] and columns [..., C]; other
        tensors have averages of all elements.
        """
        keep = 1 - step**-self.decay
        squares = gradient.square().add_(self.epsilons[0])
        if len(averages) == 2:
            of_rows, of_columns = averages
            of_rows = of_rows * keep + squares.mean(-1) * (1 - keep)
            of_columns = of_columns * keep + squares.mean(-2) * (1 - keep)
            averages = of_rows, of_columns
            by_row = (of_rows / of_rows.mean(-1, keepdim=True)).rsqrt().unsqueeze(-1)
            change = by_row * of_columns.rsqrt().unsqueeze(-2) * gradient
        else:
            averages = (averages[0] * keep + squares * (1 - keep),)
            change = averages[0].rsqrt() * gradient
        change = change / (_compute_rms(change) / self.clip).clamp(min=1.0)
        scale = (
            _compute_rms(weight).clamp(min=self.epsilons[1]) * rate if self.scale_by_size else rate
        )
        change = change * scale
        if weight_decay:
            change = change + weight * (weight_decay * scale)
        return change, *averages


def _compute_rms(tensor: "Tensor") -> "Tensor":
    return tensor.square().mean().sqrt()


# Coefficients of the quintic iteration that moves singular values towards 1 (Jordan et al.); 5
# iterations suffice.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
SMALLEST_NORM = 1e-7
# Embeddings and heads are matrices by shape only: their rows are entries, each with its own rate of
# updates.
NOT_WITHIN_LAYERS = ("embedding", "head")


class Muon(OptimizerSettings):
    """Muon for matrices within layers; another optimizer for embeddings, heads and vectors.

    In a stack of matrices, as of experts, each matrix is orthogonalised separately. A sharded
    matrix is gathered to one owner rank, so no bit depends on the number of workers.
    """

    kind: Literal["Muon"] = "Muon"
    lr: moment_optimizers.Positive = 0.02  # peak learning rate of the matrices
    momentum: moment_optimizers.Momentum = 0.95  # decay rate of the average of the gradient
    nesterov: bool = True  # if true, use Nesterov momentum
    weight_decay: moment_optimizers.Decay = 0.1  # weight decay, multiplied by the learning rate
    rounds: int = Field(default=5, ge=1)  # number of Newton-Schulz iterations in a step
    # How a step scales with the shape of the matrix. "original": by the square root of rows over
    # columns, if above 1. "match_rms_adamw": so that AdamW's learning rates can be used
    # (arXiv:2502.16982, section 2.2).
    scale: Literal["original", "match_rms_adamw"] = "original"
    # Number format of the products in the iterations.
    products: Literal["bfloat16", "float32"] = "bfloat16"
    # Number format of the average between steps; bfloat16 halves its memory.
    state: moment_optimizers.StateDtype = "float32"
    rest: moment_optimizers.AdamW = moment_optimizers.AdamW()  # optimizer of all other parameters

    @model_validator(mode="after")
    def _check_momentum(self) -> Self:
        moment_optimizers.check_rounded(self.state, self.momentum)
        return self

    def takes(self, name: str, shape: tuple[int, ...]) -> bool:
        """Return whether a parameter is a matrix within a layer, or a stack of them."""
        *path, last = name.split(".")
        outside = any(word in part for part in (*path, last) for word in NOT_WITHIN_LAYERS)
        norm = any("norm" in part for part in path)
        return len(shape) in {2, 3} and not (outside or norm or last.endswith("bias"))

    def count_state_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        """Return the bytes of a parameter's average, or of its state in the other optimizer."""
        if not self.takes(name, shape):
            return self.rest.count_state_bytes(name, shape)
        return math.prod(shape) * moment_optimizers.STATE_BYTES[self.state]

    def build(self, groups: list[ParameterGroup]) -> "OptimizerSet":
        """Build both optimizers over their parts of `groups`; the training loop sets the rates."""
        import torch  # here because torch is slow to import

        from trainrig.optim.matrix_steps import MuonSteps
        from trainrig.optim.parameter_groups import OptimizerSet

        matrices = []
        rest = []
        for group in groups:
            taken = [(n, p) for n, p in group["params"] if self.takes(n, tuple(p.shape))]
            others = [(n, p) for n, p in group["params"] if not self.takes(n, tuple(p.shape))]
            if taken:
                matrices.append(group | {"params": taken})
            if others:
                share = group.get(RATE_SHARE, 1.0) * (self.rest.lr / self.lr)
                rest.append(group | {"params": others, RATE_SHARE: share})
        parts: list[torch.optim.Optimizer | OptimizerSet] = []
        if matrices:
            average = getattr(torch, self.state)
            orthogonalise = self.build_orthogonaliser(getattr(torch, self.products))
            parts.append(
                MuonSteps(
                    matrices, self, average, self.compute_direction, orthogonalise, self.step_scale
                )
            )
        return OptimizerSet([*parts, *([self.rest.build(rest)] if rest else [])])

    def step_scale(self, shape: tuple[int, ...]) -> float:
        """Return the factor of the learning rate for a matrix [..., rows, columns]."""
        rows, columns = shape[-2:]
        if self.scale == "original":
            return math.sqrt(max(1.0, rows / columns))
        return 0.2 * math.sqrt(max(rows, columns))

    def width_share(self, role: str, name: str, shape: tuple[int, ...], multiple: float) -> float:
        """Return the factor of the learning rate in a wider model.

        The singular values of a step should grow as the square root of outputs over inputs (Yang et
        al. 2023, arXiv:2310.17813, condition 1).
        """
        if not self.takes(name, shape):
            return self.rest.width_share(role, name, shape, multiple)
        narrowing = 1 / math.sqrt(multiple) if role == "output" else 1.0
        return narrowing / (math.sqrt(multiple) if self.scale == "match_rms_adamw" else 1.0)

    def compute_direction(self, gradient: "Tensor", average: "Tensor") -> "Tensor":
        """Update `average` with a piece's `gradient`, and return the direction to orthogonalise."""
        moved = average.float().mul_(self.momentum).add_(gradient * (1 - self.momentum))
        average.copy_(moved)
        if not self.nesterov:
            return moved.clone()
        return (moved * self.momentum).add_(gradient * (1 - self.momentum))

    def build_orthogonaliser(self, dtype: Any) -> "Callable[[Tensor], tuple[Tensor, ...]]":
        """Return a function that makes the singular values of each whole matrix nearly 1."""

        def orthogonalise(matrix: "Tensor") -> "tuple[Tensor, ...]":
            a, b, c = COEFFICIENTS
            x = matrix.to(dtype)
            tall = x.shape[-2] > x.shape[-1]
            x = x.mT if tall else x
            x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)
            for _ in range(self.rounds):
                gram = x @ x.mT
                inner = _add_product(gram, gram, gram, b, c)
                x = _add_product(x, inner, x, a, 1.0)
            return ((x.mT if tall else x).float(),)

        return orthogonalise


def _add_product(
    term: "Tensor", left: "Tensor", right: "Tensor", share: float, factor: float
) -> "Tensor":
    """Return `share` of `term` plus `factor` of left @ right, rounded once."""
    if term.ndim == 2:
        return term.addmm(left, right, beta=share, alpha=factor)
    return term.baddbmm(left, right, beta=share, alpha=factor)
