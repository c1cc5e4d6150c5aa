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
    """Adafactor, algorithms 4 and 5, with the schedule's learning rate instead of a relative step.

    For a matrix it keeps one number per row and one per column. Statistics of a whole tensor are
    computed by one owner rank, so no bit depends on the number of workers.
    """

    kind: Literal["Adafactor"] = "Adafactor"
    # peak learning rate, relative to the size of a weight tensor; the default is T5's
    lr: Positive = 0.01
    # Exponent of the decay rate of the averages, which is 1 - step^-decay.
    decay: float = Field(default=0.8, gt=0, le=1)
    # Maximum root mean square of a step, before the learning rate.
    clip: Positive = 1.0
    # Two constants: the number added to squared gradients, and the minimum root mean square of a
    # tensor that scales its steps.
    epsilons: tuple[Positive, Positive] = (1e-30, 1e-3)
    # Whether to multiply the learning rate by the root mean square of the tensor.
    scale_by_size: bool = True
    weight_decay: Decay = 0.0  # weight decay, multiplied by the learning rate

    def count_state_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        """Return the bytes of a parameter's averages."""
        elements = math.prod(shape)
        if len(shape) < 2:
            return 4 * elements
        return 4 * (elements // shape[-1] + elements // shape[-2])

    def build(self, groups: list[ParameterGroup]) -> "torch.optim.Optimizer":
        """Build the optimizer over `groups` at its peak rate; the training loop sets the rates."""
        # here because torch is slow to import
        from trainrig.optim.adafactor_steps import AdafactorSteps

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
