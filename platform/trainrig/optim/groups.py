"""Which parameters weight decay pulls towards zero."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

# As torch's optimizers take it: `params`, pairs of name and parameter, and the settings they share.
ParameterGroup = dict[str, Any]
# A group's own key: its learning rate as a share of the step's; 1 where it is missing.
RATE_SHARE = "rate_share"


def group_by_decay(
    parameters: "Iterable[tuple[str, nn.Parameter]]", weight_decay: float
) -> list[ParameterGroup]:
    """Matrices, which decay, then gains and biases, which do not; an empty group is left out.

    `parameters` as `named_parameters()` gives them; those that need no gradient are not optimized.
    """
    trained = [(name, each) for name, each in parameters if each.requires_grad]
    groups: list[ParameterGroup] = [
        {"params": [p for p in trained if decays(*p)], "weight_decay": weight_decay},
        {"params": [p for p in trained if not decays(*p)], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def decays(name: str, parameter: "nn.Parameter") -> bool:
    """Whether weight decay makes sense for it: not for norms, biases and whatever is a vector.

    A gain near 1 or a bias is no measure of complexity, and pulling it to 0 turns its layer off.
    The name counts beside the dims because a norm over several axes has a gain of several dims.
    """
    *path, last = name.split(".")
    belongs_to_norm = any("norm" in part for part in path)
    return parameter.ndim >= 2 and last != "bias" and not belongs_to_norm
