"""Fallback layouts with fewer workers per replica, for a run that has lost workers."""

import itertools
from collections.abc import Sequence
from typing import Protocol

from trainrig.config import Settings
from trainrig.parallel.activation_memory.recompute import Recompute
from trainrig.parallel.layout import DDP, FSDP, HSDP, Layout


class Fallback(Settings):
    """Layout to use while there are too few workers for one replica of the layouts before it."""

    parallel: Layout = FSDP()  # how to distribute the model over the remaining workers
    # What to recompute in the backward pass with this layout, because each worker holds more of the
    # model. None: the same as the run's own setting.
    recompute: Recompute | None = None


class LaidOut(Protocol):
    """Protocol of objects with a layout: a run, or one of its fallbacks."""

    @property
    def parallel(self) -> FSDP | HSDP | DDP:
        """The layout of the model over workers."""


def list_units(first: FSDP | HSDP | DDP, fallbacks: Sequence[LaidOut]) -> tuple[int, ...]:
    """Return by how many workers the layout `first` and each of `fallbacks` grow and shrink.

    Without fallbacks the unit is one replica, and HSDP checks its number of replicas itself.
    """
    if not fallbacks:
        return (first.replica,)
    return tuple(layout.unit for layout in (first, *(fallback.parallel for fallback in fallbacks)))


def check_order(first: FSDP | HSDP | DDP, fallbacks: Sequence[LaidOut]) -> None:
    """Raise ValueError unless each of `fallbacks` needs fewer workers than those before it."""
    units = list_units(first, fallbacks)
    for number, (before, unit) in enumerate(itertools.pairwise(units)):
        if unit >= before:
            raise ValueError(
                f"fallbacks[{number}] needs at least {unit} workers, no fewer than the {before} of "
                "the layout before it; use fewer ranks, and list larger layouts first"
            )


def describe_layout(layout: FSDP | HSDP | DDP) -> str:
    """Return the kind and the ranks of each axis, as in `FSDP, tensor 2, pipeline 4`."""
    kind = f"HSDP of {layout.replicas}" if isinstance(layout, HSDP) else layout.kind
    axes = {
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "context": layout.context,
        "expert": layout.expert,
    }
    return ", ".join([kind, *(f"{name} {axis.ranks}" for name, axis in axes.items() if axis)])
