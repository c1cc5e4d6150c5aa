"""Contract of optimizers: what each declares about its steps and its state.

The run-file check, the memory estimates, the layouts, offloading and the training loop ask an
optimizer for these declarations, so none of them knows a kind by its name. Imported without torch.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from trainrig.config import Settings
from trainrig.optim.parameter_groups import ParameterGroup

if TYPE_CHECKING:
    import torch

    from trainrig.optim.parameter_groups import OptimizerSet


class OptimizerSettings(Settings):
    """Base of the settings of all optimizers, which are the union `Optimizer` of `optim`."""

    # Whether the step of an element depends on the element's own gradients alone. Any slice of a
    # tensor is then a whole task. Otherwise one rank at a time gathers each whole tensor, which
    # excludes tensor parallelism, and expert parallelism of the tensors that it updates. The torch
    # optimizer of such a kind extends `WholeTensorSteps` of matrix_steps.py.
    elementwise: ClassVar[bool] = False

    if TYPE_CHECKING:  # subclasses declare these among their other fields, `kind` as a Literal
        kind: str
        lr: float
        weight_decay: float

    @abstractmethod
    def count_state_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        """Return the bytes of state that is kept for the parameter `name` of `shape`."""

    @abstractmethod
    def build(self, groups: list[ParameterGroup]) -> "torch.optim.Optimizer | OptimizerSet":
        """Build the optimizer over `groups` at its peak rate; the training loop sets the rates."""

    def width_share(
        self, role: str, name: str, shape: tuple[int, ...], multiple: float
    ) -> float | None:
        """Return the rate factor of a parameter of `role` in a model `multiple` times as wide.

        None, if the optimizer has no rule for models of other widths.
        """
