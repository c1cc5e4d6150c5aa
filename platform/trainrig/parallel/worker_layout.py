"""`WorkerLayout`: the settings and sizes that all layouts of a model over workers share."""

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from trainrig.config import Settings
from trainrig.parallel.axes.axis_settings import AxisSettings, Context, Expert, TensorSplit
from trainrig.parallel.axes.pipeline_schedule import Pipeline
from trainrig.parallel.sharding.sum_tree import SumPlan

if TYPE_CHECKING:
    import torch

    from trainrig.parallel.mesh import WorkerMesh


class WorkerLayout(Settings):
    """Layout of a model over the workers of a run: the run-file table `training.parallel`."""

    # Whether the order of adding gradients can be independent of the number of workers.
    exact: ClassVar[bool] = False
    # Whether workers hold slices of parameters, gradients and optimizer state.
    sharded: ClassVar[bool] = True

    if TYPE_CHECKING:  # subclasses declare it among their other fields, as a Literal
        kind: str

        @property
        def reshard(self) -> Literal["step", "layer"]:
            """When gathered parameters are freed: a field, or a property where nothing is sent."""
            ...

    # Context parallelism: workers that share each row, for sequences too long for one worker. None:
    # each worker has whole rows.
    context: Context | None = None
    # Expert parallelism: workers that divide the experts of each layer, and the rows of a
    # micro-batch, among them. None: each worker has all experts and rows.
    expert: Expert | None = None
    # Tensor parallelism: workers that share each layer, for models too large for one worker. None:
    # each worker has the whole layer while it computes it.
    tensor: TensorSplit | None = None
    # Pipeline parallelism: workers that hold some of the layers each, for models too large for one
    # worker. None: each worker has all layers.
    pipeline: Pipeline | None = None

    @property
    def by_micro_batch(self) -> bool:
        """True if gradients are reduced after each micro-batch, and not once a step."""
        return False

    def inexact_by(self) -> str | None:
        """Return the setting that makes gradient sums depend on the number of workers, or None."""
        return None if self.exact else f"kind = '{type(self).__name__}'"

    @property
    def axes(self) -> list[AxisSettings]:
        """The axes of parallelism that the layout has."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return [value for value in values if isinstance(value, AxisSettings)]

    def _find_shared_axis(self) -> str | None:
        """Return the first axis along which workers share a micro-batch, or None."""
        return next((axis.name for axis in self.axes), None)

    def check_workers(self, workers: int) -> None:
        """Raise ConfigError if a model cannot be laid out over `workers` workers."""
        for axis in self.axes:
            axis.check_workers(workers, self.replica)

    def check_beside(self, compiled: bool, recompute: str | None, fused: bool = False) -> None:
        """Raise ValueError for combinations of settings that are not supported.

        Checks the axes against each other, against `compiled` layers, the kind of `recompute` and
        `fused` projections.
        """
        names = {axis.name for axis in self.axes}
        for axis in self.axes:
            axis.check_beside(names, compiled, recompute, fused)

    def check_apart(self, verb: str) -> None:
        """Raise ValueError for axes that `verb`, not `pretrain` or `posttrain`, cannot use."""
        for axis in self.axes:
            raise ValueError(
                f"training.parallel.{axis.name}: `{verb}` needs {axis.whole} on each worker; "
                f"remove it (`pretrain` and `posttrain` can {axis.divides})"
            )

    @property
    def compiles(self) -> bool:
        """True if layers can be compiled."""
        return all(axis.within_layers is None for axis in self.axes)

    @property
    def groups(self) -> int | None:
        """Number of groups, with a whole model each, that the run file sets; None: it sets none."""
        return None

    def count_slices(self, workers: int) -> int:
        """Return the number of `workers` that the parameters are sharded over."""
        return workers

    def describe(self) -> str:
        """Return the kind and the ranks of each axis, as in `FSDP, tensor 2, pipeline 4`."""
        kind = self.kind if self.groups is None else f"{self.kind} of {self.groups}"
        axes = sorted(self.axes, key=lambda axis: axis.position)
        return ", ".join([kind, *(f"{axis.name} {axis.ranks}" for axis in axes)])

    @property
    def replica(self) -> int:
        """Number of workers that compute a micro-batch together.

        A run grows and shrinks by whole replicas.
        """
        return self._ranks_of_micro_batches * self.pipeline_ranks

    def nest(self, workers: int) -> tuple[int, ...]:
        """Return the sizes of nested groups of neighbouring ranks, the innermost first.

        They are: the ranks that share a layer; the ranks with the same layers or the same
        micro-batches; the ranks of a replica.
        """
        copies = self.copies(workers // self.pipeline_ranks)
        # the same rule as in `build_mesh`
        whole = copies == workers // (self.tensor_ranks * self.pipeline_ranks)
        middle = self.tensor_ranks * self.pipeline_ranks if whole else self._ranks_of_micro_batches
        return self.tensor_ranks, middle, self.replica

    @property
    def unit(self) -> int:
        """Number of workers of which every multiple can be laid out in this way."""
        return self.replica

    @property
    def _ranks_of_micro_batches(self) -> int:
        """Number of workers that share the same micro-batches, or the same layers."""
        return math.prod(axis.ranks for axis in self.axes if axis.shares_micro_batches)

    @property
    def context_ranks(self) -> int:
        """Number of workers that divide each row."""
        return 1 if self.context is None else self.context.ranks

    @property
    def expert_ranks(self) -> int:
        """Number of workers that divide the experts of each layer."""
        return 1 if self.expert is None else self.expert.ranks

    @property
    def tensor_ranks(self) -> int:
        """Number of workers that divide each layer."""
        return 1 if self.tensor is None else self.tensor.ranks

    @property
    def stream_ranks(self) -> int:
        """Number of workers that divide the activations between layers (sequence parallelism)."""
        return self.tensor_ranks if self.tensor and self.tensor.sequence_parallel else 1

    @property
    def pipeline_ranks(self) -> int:
        """Number of workers that the layers are divided over."""
        return 1 if self.pipeline is None else self.pipeline.ranks

    @property
    def pipeline_chunks(self) -> int:
        """Number of pipeline stages on each pipeline rank."""
        return 1 if self.pipeline is None else self.pipeline.chunks

    def data_workers(self, workers: int) -> int:
        """Return the number of replicas among `workers`, over which data is divided."""
        return workers // self.replica

    def plan_sums(self, workers: int, micro_batches: int, virtual: int) -> list[SumPlan]:
        """Return which rank hands over which gradient sums in a step, on a mesh of `workers`.

        The first plan is for whole parameters. A second one is for experts, if they are divided.
        """
        # number of ranks that hold the same layers
        alike = workers // self.tensor_ranks // self.pipeline_ranks
        copies = self.copies(workers // self.pipeline_ranks) or 1
        slices = alike // copies
        parts = self.replica // self.tensor_ranks // self.pipeline_ranks
        peers = slices if self.by_micro_batch else 1
        plans = [SumPlan(micro_batches, virtual, slices, parts, copies, peers)]
        if self.expert is not None:
            plans.append(SumPlan(micro_batches, virtual, slices // parts, 1, copies, peers))
        return plans

    def mesh(self, device: "torch.device") -> "WorkerMesh":
        """Build the mesh of all ranks of the process group for this layout. Collective."""
        import torch.distributed as dist  # here because torch is slow to import

        from trainrig.parallel.mesh import build_mesh

        copies = self.copies(dist.get_world_size() // self.pipeline_ranks)
        return build_mesh(
            device,
            copies,
            self.context_ranks,
            self.tensor_ranks,
            expert=self.expert_ranks,
            pipeline=self.pipeline_ranks,
            chunks=self.pipeline_chunks,
        )

    def copies(self, workers: int) -> int | None:
        """Return how many of `workers` hold the same slices, or None if each slice is held once.

        `workers` counts the ranks that hold the same layers or parts of the same layers.
        """
        return None
