"""Muon: momentum whose singular values are made alike, for the matrices within layers.

Jordan et al. 2024 (kellerjordan.github.io/posts/muon); weight decay and the scale that takes over
AdamW's rates: Liu et al. 2025, arXiv:2502.16982, section 2.2.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.optim.adamw import AdamW
from trainrig.optim.groups import RATE_SHARE, ParameterGroup
from trainrig.optim.moments import (
    STATE_BYTES,
    Decay,
    Momentum,
    Positive,
    StateDtype,
    check_rounded,
)

if TYPE_CHECKING:
    from torch import Tensor

    from trainrig.optim.optimizer_set import OptimizerSet

# Of the quintic that draws singular values towards 1 (Jordan et al.), in which 5 rounds suffice.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
SMALLEST_NORM = 1e-7
# Tables and heads are matrices by their dims alone: their rows are entries, each with its own rate.
NOT_WITHIN_LAYERS = ("embedding", "head")


class Muon(Settings):
    """Muon on matrices within layers, another optimizer on the rest: tables, heads, gains, biases.

    A stack of matrices, as experts have, is orthogonalised matrix by matrix. A sharded matrix is
    gathered to one owner, so no bit depends on the number of workers.
    """

    kind: Literal["Muon"] = "Muon"
    lr: Positive = 0.02  # peak learning rate of the matrices
    momentum: Momentum = 0.95  # decay rate of the average of the gradient
    nesterov: bool = True  # whether to step where momentum will have led to
    weight_decay: Decay = 0.1  # weight decay of a step, times the learning rate
    rounds: int = Field(default=5, ge=1)  # Newton-Schulz iterations of a step
    # How the step grows with the matrix. "original": by the root of rows over columns, if above 1.
    # "match_rms_adamw": so that AdamW's learning rates serve (arXiv:2502.16982, section 2.2).
    scale: Literal["original", "match_rms_adamw"] = "original"
    # Number format of the iterations' products.
    products: Literal["bfloat16", "float32"] = "bfloat16"
    # Number format of the average between steps.
    state: StateDtype = "float32"
    rest: AdamW = AdamW()  # the optimizer of all that is no matrix within a layer

    @model_validator(mode="after")
    def _check_momentum(self) -> Self:
        check_rounded(self.state, self.momentum)
        return self

    def takes(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether a parameter is a matrix within a layer, or a stack of such."""
        *path, last = name.split(".")
        outside = any(word in part for part in (*path, last) for word in NOT_WITHIN_LAYERS)
        norm = any("norm" in part for part in path)
        return len(shape) in {2, 3} and not outside and not norm and last != "bias"

    def count_state_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        """Bytes of a parameter's average, or of what the other optimizer keeps of it."""
        if not self.takes(name, shape):
            return self.rest.count_state_bytes(name, shape)
        return math.prod(shape) * STATE_BYTES[self.state]

    def build(self, groups: list[ParameterGroup]) -> "OptimizerSet":
        """Both optimizers, over their parts of `groups`; the loop sets each step's rates."""
        from trainrig.optim.muon_steps import MuonSteps  # torch, which takes seconds
        from trainrig.optim.optimizer_set import OptimizerSet

        matrices, rest = [], []
        for group in groups:
            taken = [(n, p) for n, p in group["params"] if self.takes(n, tuple(p.shape))]
            others = [(n, p) for n, p in group["params"] if not self.takes(n, tuple(p.shape))]
            if taken:
                matrices.append(group | {"params": taken})
            if others:
                share = group.get(RATE_SHARE, 1.0) * (self.rest.lr / self.lr)
                rest.append(group | {"params": others, RATE_SHARE: share})
        parts = [MuonSteps(matrices, self)] if matrices else []
        return OptimizerSet([*parts, *([self.rest.build(rest)] if rest else [])])

    def step_scale(self, shape: tuple[int, ...]) -> float:
        """What the rate is multiplied by for a matrix [..., rows, columns]."""
        rows, columns = shape[-2:]
        if self.scale == "original":
            return math.sqrt(max(1.0, rows / columns))
        return 0.2 * math.sqrt(max(rows, columns))

    def width_share(self, role: str, name: str, shape: tuple[int, ...], multiple: float) -> float:
        """See Transferable: the singular values of a step should grow as the root of outputs over
        inputs (Yang et al. 2023, arXiv:2310.17813, condition 1)."""
        if not self.takes(name, shape):
            return self.rest.width_share(role, name, shape, multiple)
        narrowing = 1 / math.sqrt(multiple) if role == "output" else 1.0
        return narrowing / (math.sqrt(multiple) if self.scale == "match_rms_adamw" else 1.0)

    def compute_direction(self, gradient: "Tensor", average: "Tensor") -> "Tensor":
        """Move `average` by a piece's `gradient`; where to step from, before orthogonalisation."""
        moved = average.float().mul_(self.momentum).add_(gradient * (1 - self.momentum))
        average.copy_(moved)
        if not self.nesterov:
            return moved.clone()
        return (moved * self.momentum).add_(gradient * (1 - self.momentum))

    def build_orthogonaliser(self, dtype: Any) -> "Callable[[Tensor], tuple[Tensor, ...]]":
        """What makes the singular values of a whole matrix, or of each of a stack, nearly 1."""

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
    """`share` of `term` plus `factor` of left @ right, rounded once."""
    if term.ndim == 2:
        return term.addmm(left, right, beta=share, alpha=factor)
    return term.baddbmm(left, right, beta=share, alpha=factor)
