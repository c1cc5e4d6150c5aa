"""Layouts of a model over the workers of a run: FSDP, HSDP, DDP, and fallbacks with fewer workers.

A run that has lost workers can go on with a fallback layout, which has fewer workers per replica.
"""

import itertools
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Protocol

from pydantic import Field

from trainrig.config import NOT_IDENTITY, Settings
from trainrig.errors import ConfigError
from trainrig.parallel.precision import Precision
from trainrig.parallel.recompute import Recompute
from trainrig.parallel.worker_layout import WorkerLayout

# When gathered parameters are freed. "step": once a step, after the last micro-batch, so that each
# parameter is sent once a step, for the memory of one whole model. "layer": as soon as the layer is
# done; they are gathered again for the backward pass.
Reshard = Annotated[Literal["step", "layer"], NOT_IDENTITY]

# When a worker's gradients are reduced over workers and sliced. "step": after its last micro-batch;
# until then it holds one or more whole float32 gradients. "micro_batch": after each micro-batch,
# unit by unit, which sends the bytes that many times.
Reduce = Annotated[Literal["step", "micro_batch"], NOT_IDENTITY]


class FSDP(WorkerLayout):
    """Layout in which each worker keeps a slice of each parameter, gradient and optimizer state.

    A single worker keeps everything.
    """

    exact: ClassVar[bool] = True

    kind: Literal["FSDP"] = "FSDP"
    # When gathered parameters are freed: `step` keeps them through a step, `layer` frees them after
    # each layer and gathers them again for each pass.
    reshard: Reshard = "step"
    # When gradients are reduced over workers: `step` once a step, which holds whole gradients until
    # the last micro-batch; `micro_batch` after each micro-batch.
    reduce: Reduce = "step"

    @property
    def by_micro_batch(self) -> bool:
        """True if gradients are reduced after each micro-batch (`reduce = "micro_batch"`)."""
        return self.reduce == "micro_batch"

    def inexact_by(self) -> str | None:
        """Return the setting that makes gradient sums depend on the number of workers, or None.

        Slices can be added in a fixed order; micro-batch by micro-batch only where each worker
        computes whole micro-batches.
        """
        if self.by_micro_batch and (axis := self._find_shared_axis()):
            return f"reduce = 'micro_batch' with parallel.{axis}"
        return None


class _Copies(WorkerLayout):
    """Layout in which several workers hold the same slices, or the whole model."""

    exact: ClassVar[bool] = True

    def inexact_by(self) -> str | None:
        """Return the setting that makes gradient sums depend on the number of workers, or None.

        Copies are added in a fixed order where each worker computes whole micro-batches.
        """
        if axis := self._find_shared_axis():
            return f"kind = '{type(self).__name__}' with parallel.{axis}"
        return None


class HSDP(_Copies):
    """Layout of groups of workers, each with a whole model that is sliced within the group."""

    kind: Literal["HSDP"] = "HSDP"
    replicas: int = Field(ge=1)  # number of groups, each with a whole copy of the model
    # When gathered parameters are freed: `step` keeps them through a step, `layer` frees them after
    # each layer and gathers them again for each pass.
    reshard: Reshard = "step"
    # When gradients are reduced over workers: `step` once a step, which holds whole gradients until
    # the last micro-batch; `micro_batch` after each micro-batch.
    reduce: Reduce = "step"

    @property
    def by_micro_batch(self) -> bool:
        """True if gradients are reduced after each micro-batch (`reduce = "micro_batch"`)."""
        return self.reduce == "micro_batch"

    @property
    def groups(self) -> int:
        """The number of replicas in the run file."""
        return self.replicas

    def count_slices(self, workers: int) -> int:
        """Return the number of workers of a group."""
        return workers // self.replicas

    @property
    def unit(self) -> int:
        """Number of workers to grow and shrink by: one replica per copy of the model."""
        return self.replica * self.replicas

    def check_workers(self, workers: int) -> None:
        """Raise ConfigError unless `workers` make groups of equal size."""
        super().check_workers(workers)
        if not self._fits(workers, self.replicas):
            fitting = [str(n) for n in range(1, workers + 1) if self._fits(workers, n)]
            raise ConfigError(
                f"training.parallel.replicas ({self.replicas}) does not divide {workers} "
                f"workers{self._describe_groups()}; possible values are {', '.join(fitting)}"
            )

    def _fits(self, workers: int, copies: int) -> bool:
        """Return whether `workers` can hold `copies` copies of the model.

        The slices of one copy must consist of whole replicas, or each worker must hold a whole copy
        (its part of each layer, or its layers, where those are divided).
        """
        divided = self.tensor_ranks * self.pipeline_ranks
        alike = workers // divided
        parts = self.replica // divided
        return alike % copies == 0 and (alike // copies % parts == 0 or copies == alike)

    def _describe_groups(self) -> str:
        return "" if self.replica == 1 else f" that work in groups of {self.replica}"

    def copies(self, workers: int) -> int | None:
        """Return the number of replicas in the run file."""
        return self.replicas


class DDP(_Copies):
    """Layout in which each worker keeps the whole model."""

    sharded: ClassVar[bool] = False

    kind: Literal["DDP"] = "DDP"

    @property
    def reshard(self) -> Literal["step"]:
        """When gathered parameters are freed; without effect, because only gradients are sent."""
        return "step"

    def count_slices(self, workers: int) -> int:
        """Return 1: nothing is sliced."""
        return 1

    def copies(self, workers: int) -> int | None:
        """Return the number of workers that hold the same parameters: all, over tensor ranks."""
        return workers // self.tensor_ranks


Layout = Annotated[FSDP | HSDP | DDP, Field(discriminator="kind")]


def needs_sharding(ranks: int, precision: Precision, reshard: Reshard) -> bool:
    """Return whether a run of `ranks` ranks needs FSDP.

    One rank gathers and sends nothing, but FSDP would still copy each weight and each gradient once
    a step and keep the copies of weights through it. parallel/sharding/cast_weights.py casts
    without FSDP. Only casts that are repeated layer by layer for the backward pass need FSDP on one
    rank.
    """
    return ranks > 1 or (precision.casts and reshard == "layer")


class Fallback(Settings):
    """Layout to use while there are too few workers for one replica of the layouts before it."""

    parallel: Layout = FSDP()  # how to distribute the model over the remaining workers
    # What to recompute in the backward pass with this layout, because each worker holds more of the
    # model. None: the same as the run's own setting.
    recompute: Recompute | None = None


class LaidOut(Protocol):
    """Protocol of objects with a layout: a run, or one of its fallbacks."""

    @property
    def parallel(self) -> WorkerLayout:
        """The layout of the model over workers."""


def list_units(first: WorkerLayout, fallbacks: Sequence[LaidOut]) -> tuple[int, ...]:
    """Return by how many workers the layout `first` and each of `fallbacks` grow and shrink.

    Without fallbacks the unit is one replica, and HSDP checks its number of replicas itself.
    """
    if not fallbacks:
        return (first.replica,)
    return tuple(layout.unit for layout in (first, *(fallback.parallel for fallback in fallbacks)))


def check_order(first: WorkerLayout, fallbacks: Sequence[LaidOut]) -> None:
    """Raise ValueError unless each of `fallbacks` needs fewer workers than those before it."""
    units = list_units(first, fallbacks)
    for number, (before, unit) in enumerate(itertools.pairwise(units)):
        if unit >= before:
            raise ValueError(
                f"fallbacks[{number}] needs at least {unit} workers, no fewer than the {before} of "
                "the layout before it; use fewer ranks, and list larger layouts first"
            )
