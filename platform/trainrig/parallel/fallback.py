"""Layouts to fall back on, of fewer workers a replica, for a run that has lost some of its own."""

import itertools
from collections.abc import Sequence
from typing import Protocol

from trainrig.config import Settings
from trainrig.parallel.activation_memory.recompute import Recompute
from trainrig.parallel.layout import DDP, FSDP, HSDP, Layout


class Fallback(Settings):
    """A layout for as long as there are too few workers for one replica of those before it."""

    parallel: Layout = FSDP()  # how the model is laid out over the workers that are left
    # What to compute again in the backward pass then, as each worker holds more of the model; None:
    # what the run does.
    recompute: Recompute | None = None


class LaidOut(Protocol):
    """What has a layout: a run, or what it falls back on."""

    @property
    def parallel(self) -> FSDP | HSDP | DDP:
        """The layout."""


def list_units(first: FSDP | HSDP | DDP, fallbacks: Sequence[LaidOut]) -> tuple[int, ...]:
    """How many workers come and go together in the layout `first`, and in each of `fallbacks`.

    Without any, an HSDP of one replica more or less is a matter of its own check.
    """
    if not fallbacks:
        return (first.replica,)
    return tuple(each.unit for each in (first, *(each.parallel for each in fallbacks)))


def check_order(first: FSDP | HSDP | DDP, fallbacks: Sequence[LaidOut]) -> None:
    """Raise ValueError unless each of `fallbacks` does with fewer workers than all before it."""
    units = list_units(first, fallbacks)
    for number, (before, unit) in enumerate(itertools.pairwise(units)):
        if unit >= before:
            raise ValueError(
                f"fallbacks[{number}] takes {unit} workers or more, no fewer than the {before} of "
                "the layout before it; give fewer ranks, and the larger layouts first"
            )


def describe_layout(layout: FSDP | HSDP | DDP) -> str:
    """Its kind, and the ranks of each axis: `FSDP, tensor 2, pipeline 4`."""
    kind = f"HSDP of {layout.replicas}" if isinstance(layout, HSDP) else layout.kind
    axes = {
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "context": layout.context,
        "expert": layout.expert,
    }
    return ", ".join([kind, *(f"{name} {axis.ranks}" for name, axis in axes.items() if axis)])
