"""Parameter groups for weight decay and muP, and sets of optimizers that take their steps together.

Learning rates that depend on the model's width are muP (Yang et al. 2022, arXiv:2203.03466): an
update of a matrix should change its outputs equally at any width. Each optimizer implements its
own scaling in `width_share`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


# A parameter group of torch's optimizers: `params`, as pairs of name and parameter, and their
# common settings.
ParameterGroup = dict[str, Any]
# Key of a group for its learning rate relative to the step's; 1 if missing.
RATE_SHARE = "rate_share"
# How the dimensions of a parameter grow with the width, by parameter name: its rows alone
# ("input"), its inputs alone ("output"), both ("hidden"), or a vector.
Roles = Mapping[str, str]


def group_by_decay(
    parameters: "Iterable[tuple[str, nn.Parameter]]", weight_decay: float | None
) -> list[ParameterGroup]:
    """Return one group of matrices with weight decay, and one of gains and biases without.

    Empty groups are left out. `parameters` are pairs as from `named_parameters()`; those that need
    no gradient are left out. `weight_decay` None: the optimizer's own.
    """
    trained = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    strength = {} if weight_decay is None else {"weight_decay": weight_decay}
    groups: list[ParameterGroup] = [
        {"params": [p for p in trained if decays(*p)], **strength},
        {"params": [p for p in trained if not decays(*p)], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def decays(name: str, parameter: "nn.Parameter") -> bool:
    """Return whether weight decay applies to a parameter: not to norms, biases and other vectors.

    A gain near 1 or a bias is no measure of complexity, and pulling it to 0 turns its layer off.
    The name counts besides the shape, because a norm over several axes has a gain with several
    dimensions.
    """
    *path, last = name.split(".")
    belongs_to_norm = any("norm" in part for part in path)
    return parameter.ndim >= 2 and not last.endswith("bias") and not belongs_to_norm


@dataclass(frozen=True)
class WidthTransfer:
    """Width of a model relative to the base model for which its learning rates were chosen."""

    multiple: float
    roles: Roles  # role by parameter name; a parameter without one keeps its rate


def elementwise_share(role: str, multiple: float) -> float:
    """Return the rate factor for optimizers whose steps are about as large as the learning rate.

    Yang et al. 2022, table 3, the row of Adam: a sum over `multiple` times as many inputs changes
    by `multiple` times the rate.
    """
    return 1 / multiple if role in {"hidden", "output"} else 1.0


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
