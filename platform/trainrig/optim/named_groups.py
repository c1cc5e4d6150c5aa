"""Groups of parameters by the patterns of their names: decay, rate, an optimizer, or none."""

import difflib
import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.optim import Optimizer
from trainrig.optim.groups import RATE_SHARE, ParameterGroup, WidthTransfer, group_by_decay
from trainrig.optim.moments import Decay
from trainrig.optim.optimizer_set import OptimizerSet

if TYPE_CHECKING:
    import torch
    from torch import nn

_WIDTH_SHARE = "width_share"  # a group's own key, on its way


class NamedGroup(Settings):
    """Parameters that are trained in another way than the rest, or not at all."""

    # Names of its parameters, as checkpoints have them: `*` stands for anything, `?` for one
    # character ("embedding.*", "layers.[01].*", "*.feedforward.*").
    match: str = Field(min_length=1)
    freeze: bool = False  # whether they stay as they are: no gradient, no optimizer memory
    # Learning rate as a share of its optimizer's.
    rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Weight decay of its matrices; None: its optimizer's.
    weight_decay: Decay | None = None
    # Its own optimizer, at whose `lr` the schedule peaks; None: that of the run.
    optimizer: Optimizer | None = None

    @model_validator(mode="after")
    def _check_frozen(self) -> Self:
        others = self.rate != 1 or self.weight_decay is not None or self.optimizer is not None
        if self.freeze and others:
            raise ValueError(
                f"'{self.match}' is frozen, so it has no rate, weight_decay or optimizer; leave "
                "these out, or freeze"
            )
        return self


def assign(names: Iterable[str], groups: Sequence[NamedGroup]) -> dict[str, NamedGroup]:
    """The group of each of the parameters `names` that has one.

    Raises ConfigError for a group without parameters, a parameter in two, and if all are frozen.
    """
    names = list(names)
    found: dict[str, NamedGroup] = {}
    for number, group in enumerate(groups):
        members = [name for name in names if fnmatch.fnmatchcase(name, group.match)]
        where = f"training.groups[{number}].match = '{group.match}'"
        if not members:
            near = difflib.get_close_matches(group.match, names, 1, 0.0)
            raise ConfigError(f"{where} matches no parameter; one is called '{near[0]}'")
        for name in members:
            if name in found:
                raise ConfigError(
                    f"{where} and '{found[name].match}' both match {name}; a parameter has one "
                    "group: narrow one of the two"
                )
            found[name] = group
    if names and all(name in found and found[name].freeze for name in names):
        raise ConfigError("training.groups freeze every parameter; leave some to train")
    return found


def choose_matching(names: Iterable[str], groups: Sequence[NamedGroup]) -> tuple[NamedGroup, ...]:
    """Those of `groups` that have one of the parameters `names`: of a stage of a model, say, which
    has some of the parameters that `assign` was given."""
    names = list(names)
    return tuple(
        group for group in groups if any(fnmatch.fnmatchcase(name, group.match) for name in names)
    )


def freeze(model: "nn.Module", groups: Sequence[NamedGroup]) -> None:
    """Have the parameters of frozen groups need no gradient; before `model` is sharded."""
    parameters = dict(model.named_parameters())
    for name, group in assign(parameters, groups).items():
        if group.freeze:
            parameters[name].requires_grad_(False)


def build_optimizer(
    parameters: "Iterable[tuple[str, nn.Parameter]]",
    optimizer: Optimizer,
    groups: Sequence[NamedGroup] = (),
    transfer: WidthTransfer | None = None,
    hosted: bool = False,
) -> OptimizerSet:
    """Optimizers over all of `parameters` that are to be trained, with rates by width if there is a
    `transfer`. `hosted`: what they remember is kept in the host's memory. Raises ConfigError for an
    optimizer that does not say how its rate goes with it."""
    pairs = list(parameters)
    assigned = assign((name for name, _ in pairs), groups)
    rest = [(name, each) for name, each in pairs if name not in assigned]
    own = _split_by_width(group_by_decay(rest, None), optimizer, transfer)
    members: list[torch.optim.Optimizer | OptimizerSet] = []
    for group in groups:
        if group.freeze:
            continue
        chosen = group.optimizer or optimizer
        theirs = [(name, each) for name, each in pairs if assigned.get(name) is group]
        made = group_by_decay(theirs, group.weight_decay)
        for each in made:
            each[RATE_SHARE] = group.rate * (chosen.lr / optimizer.lr)
        made = _split_by_width(made, chosen, transfer)
        if group.optimizer is None:
            own += made
        else:
            members.append(chosen.build(made))
    built = OptimizerSet([*([optimizer.build(own)] if own else []), *members])
    for each in built.param_groups:
        # Optimizers decay by rate times decay, which stays what it is at the base.
        each["weight_decay"] /= each.pop(_WIDTH_SHARE, 1.0)
    return _host(built) if hosted else built


def _host(optimizers: OptimizerSet) -> OptimizerSet:
    from trainrig.optim.hosted import HostedOptimizer  # torch, which takes seconds

    return OptimizerSet([HostedOptimizer(part) for part in optimizers.parts])


def _split_by_width(
    groups: list[ParameterGroup], optimizer: Optimizer, transfer: WidthTransfer | None
) -> list[ParameterGroup]:
    """`groups`, cut into those whose rates go with the width alike."""
    if transfer is None:
        return groups
    cut: list[ParameterGroup] = []
    for group in groups:
        by_share: dict[float, list[tuple[str, nn.Parameter]]] = {}
        for name, each in group["params"]:
            share = transfer.share(optimizer, name, tuple(each.shape))
            by_share.setdefault(share, []).append((name, each))
        for share, members in by_share.items():
            rate = group.get(RATE_SHARE, 1.0) * share
            cut.append(group | {"params": members, RATE_SHARE: rate, _WIDTH_SHARE: share})
    return cut


def count_state_bytes(
    shapes: Mapping[str, tuple[int, ...]],
    optimizer: Optimizer,
    groups: Sequence[NamedGroup] = (),
) -> int:
    """Bytes that optimizers keep of parameters of such `shapes`, by name; frozen ones take none."""
    assigned = assign(shapes, groups)
    total = 0
    for name, shape in shapes.items():
        group = assigned.get(name)
        if group is None or not group.freeze:
            chosen = group.optimizer if group and group.optimizer else optimizer
            total += chosen.count_state_bytes(name, shape)
    return total


def count_trained(shapes: Mapping[str, tuple[int, ...]], groups: Sequence[NamedGroup] = ()) -> int:
    """Parameters of such `shapes`, by name, that are not frozen."""
    assigned = assign(shapes, groups)
    return sum(
        math.prod(shape)
        for name, shape in shapes.items()
        if name not in assigned or not assigned[name].freeze
    )
