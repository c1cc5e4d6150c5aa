"""Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101)."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.optim.groups import ParameterGroup

if TYPE_CHECKING:
    import torch

Momentum = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AdamW(Settings):
    """The AdamW optimizer, with Llama's defaults (Touvron et al. 2023, arXiv:2302.13971).

    Theirs are in section 2.3 and table 2.
    """

    kind: Literal["AdamW"] = "AdamW"
    lr: Positive = 3e-4  # peak learning rate
    # Decay rates of the averages of the gradient and of its square.
    betas: tuple[Momentum, Momentum] = (0.9, 0.95)
    epsilon: Positive = 1e-8  # number added to the denominator, against division by 0
    # Weight decay of a step, times the learning rate.
    weight_decay: float = Field(default=0.1, ge=0, allow_inf_nan=False)

    def build(self, groups: list[ParameterGroup]) -> "torch.optim.AdamW":
        """The optimizer over `groups`, at its peak rate; the loop sets each step's.

        Weights must not depend on how they are sharded, so the update of a piece of a tensor has to
        be bit for bit the piece of its update. torch's fused kernel for the CPU is not like that:
        it rounds the last elements, those that fill no vector, otherwise. So it is used on CUDA
        alone; on the CPU it would save a few percent of a step.
        """
        import torch  # takes seconds, which reading a run file should not

        parameters = [parameter for group in groups for _, parameter in group["params"]]
        on_cuda = all(parameter.is_cuda for parameter in parameters)
        return torch.optim.AdamW(
            groups,
            lr=self.lr,
            betas=self.betas,
            eps=self.epsilon,
            fused=on_cuda,
        )
