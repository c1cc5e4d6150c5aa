"""Parameter groups by name pattern, with their own decay, rate or optimizer, or frozen."""

import difflib
import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.optim import Optimizer, OptimizerSettings, list_optimizers, parameter_groups
from trainrig.optim.moment_optimizers import Decay

if TYPE_CHECKING:
    import torch
    from torch import nn

_WIDTH_SHARE = "width_share"  # temporary key of a group for its width factor


class NamedGroup(Settings):
    """Parameters that are trained differently from the rest, or not at all."""

    # Pattern of the group's parameter names, as they are in checkpoints: `*` matches anything, `?`
    # one character ("embedding.*", "layers.[01].*", "*.feedforward.*").
    match: str = Field(min_length=1)
    freeze: bool = False  # if true, the parameters are frozen: no gradient, no optimizer state
    # Learning rate relative to the optimizer's.
    rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Weight decay of the group's matrices. None: the optimizer's.
    weight_decay: Decay | None = None
    # Optimizer of the group; its `lr` is the peak of the schedule. None: the run's optimizer.
    optimizer: Optimizer | None = None

    @model_validator(mode="after")
    def _check_frozen(self) -> Self:
        others = self.rate != 1 or self.weight_decay is not None or self.optimizer is not None
        if self.freeze and others:
            raise ValueError(
                f"'{self.match}' is frozen, so rate, weight_decay and optimizer have no effect; "
                "remove these, or freeze"
            )
        return self


def assign(names: Iterable[str], groups: Sequence[NamedGroup]) -> dict[str, NamedGroup]:
    """Return the group of each of the parameters `names` that has one.

    Raises ConfigError for a group without parameters, a parameter in two groups, or if all
    parameters are frozen.
    """
    names = list(names)
    found: dict[str, NamedGroup] = {}
    for number, group in enumerate(groups):
        members = [name for name in names if fnmatch.fnmatchcase(name, group.match)]
        where = f"training.groups[{number}].match = '{group.match}'"
        if not members:
            near = difflib.get_close_matches(group.match, names, 1, 0.0)
            raise ConfigError(f"{where} matches no parameter; the closest name is '{near[0]}'")
        for name in members:
            if name in found:
                raise ConfigError(
                    f"{where} and '{found[name].match}' both match {name}, but a parameter can "
                    "have only one group; narrow one of the two"
                )
            found[name] = group
    if names and all(name in found and found[name].freeze for name in names):
        raise ConfigError("training.groups freezes every parameter; leave some unfrozen")
    return found


def choose_matching(names: Iterable[str], groups: Sequence[NamedGroup]) -> tuple[NamedGroup, ...]:
    """Return each of `groups` that matches at least one of the parameters `names`.

    For a pipeline stage, for example, which has only some of the parameters given to `assign`.
    """
    names = list(names)
    return tuple(
        group for group in groups if any(fnmatch.fnmatchcase(name, group.match) for name in names)
    )


def freeze(model: "nn.Module", groups: Sequence[NamedGroup]) -> None:
    """Turn off the gradients of the parameters of frozen groups; call before `model` is sharded."""
    parameters = dict(model.named_parameters())
    for name, group in assign(parameters, groups).items():
        if group.freeze:
            parameters[name].requires_grad_(False)


def build_optimizer(
    parameters: "Iterable[tuple[str, nn.Parameter]]",
    optimizer: Optimizer,
    groups: Sequence[NamedGroup] = (),
    transfer: parameter_groups.WidthTransfer | None = None,
    hosted: bool = False,
) -> parameter_groups.OptimizerSet:
    """Build the optimizers of all trained parameters.

    Args:
        parameters: Pairs of name and parameter.
        optimizer: The run's optimizer, for parameters without a group optimizer.
        groups: Groups of parameters with other settings.
        transfer: Width of the model relative to the base model, to scale learning rates by.
        hosted: Whether to keep optimizer state in the host's memory.

    Raises:
        ConfigError: `transfer` is given and an optimizer has no rule for it.
    """
    pairs = list(parameters)
    assigned = assign((name for name, _ in pairs), groups)
    rest = [(name, parameter) for name, parameter in pairs if name not in assigned]
    own = _split_by_width(parameter_groups.group_by_decay(rest, None), optimizer, transfer)
    members: list[torch.optim.Optimizer | parameter_groups.OptimizerSet] = []
    for group in groups:
        if group.freeze:
            continue
        chosen = group.optimizer or optimizer
        theirs = [(name, parameter) for name, parameter in pairs if assigned.get(name) is group]
        made = parameter_groups.group_by_decay(theirs, group.weight_decay)
        for made_group in made:
            made_group[parameter_groups.RATE_SHARE] = group.rate * (chosen.lr / optimizer.lr)
        made = _split_by_width(made, chosen, transfer)
        if group.optimizer is None:
            own += made
        else:
            members.append(chosen.build(made))
    built = parameter_groups.OptimizerSet([*([optimizer.build(own)] if own else []), *members])
    for built_group in built.param_groups:
        # Optimizers decay by rate times decay, which must stay equal to the base model's.
        built_group["weight_decay"] /= built_group.pop(_WIDTH_SHARE, 1.0)
    return _host(built) if hosted else built


def _host(optimizers: parameter_groups.OptimizerSet) -> parameter_groups.OptimizerSet:
    from trainrig.optim.optimizer_offload import (
        OffloadedOptimizer,  # here because torch is slow to import
    )

    return parameter_groups.OptimizerSet([OffloadedOptimizer(part) for part in optimizers.parts])


def _split_by_width(
    groups: list[parameter_groups.ParameterGroup],
    optimizer: Optimizer,
    transfer: parameter_groups.WidthTransfer | None,
) -> list[parameter_groups.ParameterGroup]:
    """Split `groups` by the factor that the model's width gives to learning rates."""
    if transfer is None:
        return groups
    cut: list[parameter_groups.ParameterGroup] = []
    for group in groups:
        by_share: dict[float, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in group["params"]:
            share = compute_width_share(transfer, optimizer, name, tuple(parameter.shape))
            by_share.setdefault(share, []).append((name, parameter))
        for share, members in by_share.items():
            rate = group.get(parameter_groups.RATE_SHARE, 1.0) * share
            cut.append(
                group | {"params": members, parameter_groups.RATE_SHARE: rate, _WIDTH_SHARE: share}
            )
    return cut


def compute_width_share(
    transfer: parameter_groups.WidthTransfer,
    optimizer: Optimizer,
    name: str,
    shape: tuple[int, ...],
) -> float:
    """Return the factor of `optimizer`'s learning rate for the parameter `name` of `shape`.

    Raises ConfigError if the optimizer has no rule for the width of the model.
    """
    if name not in transfer.roles:
        return 1.0
    share = optimizer.width_share(transfer.roles[name], name, shape, transfer.multiple)
    if share is not None:
        return share
    *others, last = sorted(
        kind.__name__
        for kind in list_optimizers()
        if kind.width_share is not OptimizerSettings.width_share
    )
    raise ConfigError(
        f"model.mup: {optimizer.kind} has no rule to scale its learning rate with the width; use "
        f"{', '.join(others)} or {last}, or remove model.mup"
    )


def count_state_bytes(
    shapes: Mapping[str, tuple[int, ...]],
    optimizer: Optimizer,
    groups: Sequence[NamedGroup] = (),
) -> int:
    """Return the bytes of optimizer state for parameters of these `shapes`, without frozen ones."""
    assigned = assign(shapes, groups)
    total = 0
    for name, shape in shapes.items():
        group = assigned.get(name)
        if group is None or not group.freeze:
            chosen = group.optimizer if group and group.optimizer else optimizer
            total += chosen.count_state_bytes(name, shape)
    return total


def count_trained(shapes: Mapping[str, tuple[int, ...]], groups: Sequence[NamedGroup] = ()) -> int:
    """Return the number of parameters of these `shapes` that are not frozen, in elements."""
    assigned = assign(shapes, groups)
    return sum(
        math.prod(shape)
        for name, shape in shapes.items()
        if name not in assigned or not assigned[name].freeze
    )
