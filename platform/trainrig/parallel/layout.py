"""How a model is laid out over the workers of a run: whole on each, in slices, or both."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainrig.config import NOT_IDENTITY
from trainrig.errors import ConfigError
from trainrig.parallel.layout_contract import WorkerLayout
from trainrig.parallel.precision import Precision

# When gathered parameters are let go. "step": once a step, after its last micro-batch, so that each
# is sent once a step however many micro-batches there are, for the memory of one whole model.
# "layer": as soon as the layer is done, and gathered again for the backward pass.
Reshard = Annotated[Literal["step", "layer"], NOT_IDENTITY]

# When a worker's gradients are added to the others' and sliced.
# "step": after its last micro-batch; until then it holds a whole float32 gradient, or several.
# "micro_batch": after each, unit by unit, for as many times the bytes sent.
Reduce = Annotated[Literal["step", "micro_batch"], NOT_IDENTITY]


class FSDP(WorkerLayout):
    """Each worker keeps a slice of every parameter, its gradient and its optimizer memory; a worker
    alone keeps all."""

    exact: ClassVar[bool] = True

    kind: Literal["FSDP"] = "FSDP"
    # When gathered parameters are freed: `step` keeps them through a step, `layer` gathers them
    # again for each pass.
    reshard: Reshard = "step"
    # When gradients are added and sliced: `step` once a step, which holds whole gradients while
    # there are micro-batches to come; `micro_batch` after each.
    reduce: Reduce = "step"

    @property
    def by_micro_batch(self) -> bool:
        """As the run file says."""
        return self.reduce == "micro_batch"

    def inexact_by(self) -> str | None:
        """Slices can be added in a fixed order, micro-batch by micro-batch where no worker has a
        part of one."""
        if self.by_micro_batch and (axis := self._find_shared_axis()):
            return f"reduce = 'micro_batch' beside parallel.{axis}"
        return None


class _Copies(WorkerLayout):
    """Several workers hold the same slices, or the whole."""

    exact: ClassVar[bool] = True

    def inexact_by(self) -> str | None:
        """Copies are added in a fixed order where each worker computes whole micro-batches."""
        if axis := self._find_shared_axis():
            return f"kind = '{type(self).__name__}' beside parallel.{axis}"
        return None


class HSDP(_Copies):
    """Groups of workers that hold a whole model each, sliced within the group."""

    kind: Literal["HSDP"] = "HSDP"
    replicas: int = Field(ge=1)  # number of groups, each with a whole copy of the model
    # When gathered parameters are freed: `step` keeps them through a step, `layer` gathers them
    # again for each pass.
    reshard: Reshard = "step"
    # When gradients are added and sliced: `step` once a step, which holds whole gradients while
    # there are micro-batches to come; `micro_batch` after each.
    reduce: Reduce = "step"

    @property
    def by_micro_batch(self) -> bool:
        """As the run file says."""
        return self.reduce == "micro_batch"

    @property
    def unit(self) -> int:
        """A replica for each copy of the model."""
        return self.replica * self.replicas

    def check_workers(self, workers: int) -> None:
        """Raise ConfigError unless `workers` make groups of equal size."""
        super().check_workers(workers)
        if not self._fits(workers, self.replicas):
            fitting = [str(n) for n in range(1, workers + 1) if self._fits(workers, n)]
            raise ConfigError(
                f"training.parallel.replicas ({self.replicas}) does not divide {workers} workers"
                f"{self._describe_groups()}; for so many it may be {', '.join(fitting)}"
            )

    def _fits(self, workers: int, copies: int) -> bool:
        """Whether `workers` can hold so many copies: the slices of one lie with whole replicas, or
        each worker holds a whole one (its part of each layer, or its layers, where they are
        divided)."""
        divided = self._tensor * self.pipeline_ranks
        alike, parts = workers // divided, self.replica // divided
        return alike % copies == 0 and (alike // copies % parts == 0 or copies == alike)

    def _describe_groups(self) -> str:
        return "" if self.replica == 1 else f" that work in groups of {self.replica}"

    def copies(self, workers: int) -> int | None:
        """As many as the run file says."""
        return self.replicas


class DDP(_Copies):
    """Each worker keeps the whole model."""

    kind: Literal["DDP"] = "DDP"

    @property
    def reshard(self) -> Literal["step"]:
        """Nothing is ever sent but gradients, so there is nothing to let go."""
        return "step"

    def copies(self, workers: int) -> int | None:
        """Each holds all, or its part of each layer."""
        return workers // self._tensor


Layout = Annotated[FSDP | HSDP | DDP, Field(discriminator="kind")]


def needs_sharding(ranks: int, precision: Precision, reshard: Reshard) -> bool:
    """Whether FSDP has anything to do for a run of `ranks`.

    One rank gathers nothing and sends nothing. FSDP would copy each weight and each gradient once a
    step all the same, and keep the copies of weights through it; casts are made without it (see
    parallel/gradients/cast_weights.py). But casts layer by layer, made anew for the backward pass,
    are FSDP's to make.
    """
    return ranks > 1 or (precision.casts and reshard == "layer")
