"""Which parameters weight decay pulls towards zero, and whose rate goes with the model's width.

The second is muP's (Yang et al. 2022, arXiv:2203.03466): an update of a matrix should change what
it gives by as much at any width. How far an optimizer's own step goes with the width is its own to
know: `width_share`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trainrig.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

# As torch's optimizers take it: `params`, pairs of name and parameter, and the settings they share.
ParameterGroup = dict[str, Any]
# A group's own key: its learning rate as a share of the step's; 1 where it is missing.
RATE_SHARE = "rate_share"
# How the sizes of a parameter grow with the width, by the names of trainrig.models: its rows alone
# ("input"), its inputs alone ("output"), both ("hidden"), or a vector.
Roles = Mapping[str, str]


def group_by_decay(
    parameters: "Iterable[tuple[str, nn.Parameter]]", weight_decay: float | None
) -> list[ParameterGroup]:
    """Matrices, which decay, then gains and biases, which do not; an empty group is left out.

    `parameters` as `named_parameters()` gives them; those that need no gradient are not optimized.
    `weight_decay` None: as strong as the optimizer has it.
    """
    trained = [(name, each) for name, each in parameters if each.requires_grad]
    strength = {} if weight_decay is None else {"weight_decay": weight_decay}
    groups: list[ParameterGroup] = [
        {"params": [p for p in trained if decays(*p)], **strength},
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


@dataclass(frozen=True)
class WidthTransfer:
    """How much wider a model is than the one that its rates are for."""

    multiple: float
    roles: Roles  # by name; a parameter that is not there keeps its rate

    def share(self, optimizer: object, name: str, shape: tuple[int, ...]) -> float:
        """The share of its rate that `optimizer` moves the parameter `name` by.

        Raises ConfigError for an optimizer that does not say.
        """
        if name not in self.roles:
            return 1.0
        if not isinstance(optimizer, Transferable):
            kind = getattr(optimizer, "kind", type(optimizer).__name__)
            raise ConfigError(
                f"model.mup: how the rate of {kind} goes with the width is not known here; "
                "choose AdamW, Lion or Muon, or leave model.mup out"
            )
        return optimizer.width_share(self.roles[name], name, shape, self.multiple)


@runtime_checkable
class Transferable(Protocol):
    """An optimizer whose rate is known at any width."""

    def width_share(self, role: str, name: str, shape: tuple[int, ...], multiple: float) -> float:
        """The share of the rate for a parameter of `role` in a model `multiple` times as wide."""
        ...


def elementwise_share(role: str, multiple: float) -> float:
    """Of optimizers that move each weight by about the rate, whatever its gradient is (ibid., table
    3, the row of Adam): a sum over inputs that are `multiple` times as many moves by as many times
    the rate."""
    return 1 / multiple if role in {"hidden", "output"} else 1.0
