"""Set of optimizers that take their steps together."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainrig.optim.groups import ParameterGroup

if TYPE_CHECKING:
    import torch


class OptimizerSet:
    """Optimizers over separate groups, used as one optimizer."""

    def __init__(self, members: "Sequence[torch.optim.Optimizer | OptimizerSet]") -> None:
        self.parts: list[torch.optim.Optimizer] = list(_flatten(members))

    @property
    def param_groups(self) -> list[ParameterGroup]:
        """The parameter groups of all optimizers, not copies."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        """Take one step of each optimizer."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)


def _flatten(
    members: "Sequence[torch.optim.Optimizer | OptimizerSet]",
) -> "Iterator[torch.optim.Optimizer]":
    for member in members:
        if isinstance(member, OptimizerSet):
            yield from member.parts
        else:
            yield member
