"""Adafactor: second moments by row and column (Shazeer & Stern 2018, arXiv:1804.04235)."""

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.optim.groups import ParameterGroup
from trainrig.optim.moments import Decay, Positive

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Adafactor(Settings):
    """Algorithms 4 and 5, with a learning rate of the schedule's in place of a relative step.

    Of a matrix it keeps one number a row and one a column. Statistics of whole tensors are computed
    by one owner of each, so no bit depends on the number of workers.
    """

    kind: Literal["Adafactor"] = "Adafactor"
    lr: Positive = 0.01  # peak learning rate; T5's, of the size of a weight tensor
    # Power of the step at which averages forget: their decay rate is 1 - step^-decay.
    decay: float = Field(default=0.8, gt=0, le=1)
    # Largest root mean square of a step, before the rate.
    clip: Positive = 1.0
    # Numbers added to squared gradients, and least size of a tensor that steps are scaled by.
    epsilons: tuple[Positive, Positive] = (1e-30, 1e-3)
    # Whether the rate is multiplied by the root mean square of the tensor.
    scale_by_size: bool = True
    weight_decay: Decay = 0.0  # weight decay of a step, times the learning rate

    def count_state_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        """Bytes of a parameter's averages."""
        elements = math.prod(shape)
        if len(shape) < 2:
            return 4 * elements
        return 4 * (elements // shape[-1] + elements // shape[-2])

    def build(self, groups: list[ParameterGroup]) -> "torch.optim.Optimizer":
        """The optimizer over `groups`, at its peak rate; the loop sets each step's."""
        from trainrig.optim.adafactor_steps import AdafactorSteps  # torch, which takes seconds

        return AdafactorSteps(groups, self)

    def compute_step(
        self,
        weight: "Tensor",
        gradient: "Tensor",
        averages: "tuple[Tensor, ...]",
        step: float,
        rate: float,
        weight_decay: float,
    ) -> "tuple[Tensor, ...]":
        """What to take away from a whole `weight`, and the new averages: of the squares of its rows
        [..., R] and columns [..., C], or of all its elements where it is no matrix."""
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
    """Root mean square."""
    return tensor.square().mean().sqrt()
