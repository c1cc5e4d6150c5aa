"""What each layout of a model over workers says of itself."""

from typing import TYPE_CHECKING, ClassVar

from trainrig.config import Settings
from trainrig.parallel.context.settings import Context
from trainrig.parallel.exact.plan import SumPlan
from trainrig.parallel.expert.settings import Expert
from trainrig.parallel.pipeline.settings import Pipeline
from trainrig.parallel.tensor.settings import TensorSplit

if TYPE_CHECKING:
    import torch

    from trainrig.parallel.mesh import WorkerMesh


class WorkerLayout(Settings):
    """How a model is laid out over the workers of a run; its fields are `training.parallel`."""

    # Whether gradients can be added in an order that does not depend on the number of workers.
    exact: ClassVar[bool] = False

    # Workers that share each row, for sequences that one has no room for; None: each has whole
    # rows.
    context: Context | None = None
    # Workers that divide the experts of each layer among them, and the rows of a micro-batch; None:
    # each has all of both.
    expert: Expert | None = None
    # Workers that share each layer, for models that one has no room for; None: each has all of a
    # layer while it computes it.
    tensor: TensorSplit | None = None
    # Workers that have some of the layers each, for models that one has no room for; None: each has
    # all.
    pipeline: Pipeline | None = None

    @property
    def by_micro_batch(self) -> bool:
        """Whether gradients are added and sliced after each micro-batch, and not once a step."""
        return False

    def inexact_by(self) -> str | None:
        """The setting by which gradients are added in an order that depends on the number of
        workers; None: they need not be."""
        return None if self.exact else f"kind = '{type(self).__name__}'"

    def _find_shared_axis(self) -> str | None:
        """The first axis by which several workers share a micro-batch; None: each has whole
        ones."""
        axes: dict[str, Settings | None] = {
            "context": self.context,
            "expert": self.expert,
            "tensor": self.tensor,
            "pipeline": self.pipeline,
        }
        return next((name for name, axis in axes.items() if axis is not None), None)

    def check_workers(self, workers: int) -> None:
        """Raise ConfigError if a model cannot be laid out over `workers` workers."""
        for axis in (self.context, self.pipeline, self.expert):
            if axis is not None:
                axis.check_workers(workers)
        if self.tensor is not None:
            self.tensor.check_workers(workers, self.replica)

    def check_beside(self, compiled: bool, recompute: str | None, fused: bool = False) -> None:
        """Raise ValueError for axes that do not go together, or not with `compiled` layers, with
        that kind of recomputation, or with `fused` projections."""
        if self.context is not None and compiled:
            raise ValueError(
                "parallel.context sends keys and values from within layers, which cannot be "
                "compiled then; leave out [training.compile] or [training.parallel.context]"
            )
        if recompute == "Budget" and self.pipeline and self.pipeline.schedule == "GPipe":
            raise ValueError(
                "recompute.kind = 'Budget' beside parallel.pipeline.schedule = 'GPipe', which "
                "keeps all micro-batches of a step, however many; set schedule = '1F1B'"
            )
        if self.expert is not None and self.context is not None:
            raise ValueError(
                "parallel.expert divides whole rows, which parallel.context cuts; leave out one of "
                "the two"
            )
        if self.tensor is not None and compiled:
            raise ValueError(
                "parallel.tensor adds up over workers within layers, which cannot be compiled "
                "then; leave out [training.compile] or [training.parallel.tensor]"
            )
        if self.tensor is not None and fused:
            raise ValueError(
                "parallel.tensor cuts the matrices of queries, keys and values each in its own "
                "way; leave out training.fuse_projections or [training.parallel.tensor]"
            )
        if self.expert is not None and compiled:
            raise ValueError(
                "parallel.expert sends tokens from within layers, which cannot be compiled then; "
                "leave out [training.compile] or [training.parallel.expert]"
            )
        if self.expert is not None and recompute == "Selective":
            raise ValueError(
                "parallel.expert gathers experts within layers, of which recompute.kind = "
                "'Selective' loses count; set recompute.kind = 'Full', or leave out "
                "[training.recompute]"
            )

    def check_apart(self, verb: str) -> None:
        """Raise ValueError for axes that the verb `verb`, neither `pretrain` nor `posttrain`, has
        not."""
        if self.context is not None:
            raise ValueError(
                f"training.parallel.context: `{verb}` reads whole rows; leave it out (rows are "
                "shared in `pretrain` and `posttrain`)"
            )
        if self.pipeline is not None:
            raise ValueError(
                f"training.parallel.pipeline: `{verb}` has all layers on each worker; leave it out "
                "(they are divided in `pretrain` and `posttrain`)"
            )
        if self.expert is not None:
            raise ValueError(
                f"training.parallel.expert: `{verb}` has all experts on each worker; leave it out "
                "(they are divided in `pretrain` and `posttrain`)"
            )
        if self.tensor is not None:
            raise ValueError(
                f"training.parallel.tensor: `{verb}` has whole layers on each worker; leave it out "
                "(they are shared in `pretrain` and `posttrain`)"
            )

    @property
    def replica(self) -> int:
        """Workers that compute a micro-batch together, and come and go together."""
        return self._ranks_of_micro_batches * self.pipeline_ranks

    def nest(self, workers: int) -> tuple[int, ...]:
        """How many of `workers` are in the groups of neighbours in rank of which others are made:
        those that share a layer, those with the same layers or micro-batches, a replica."""
        copies = self.copies(workers // self.pipeline_ranks)
        whole = copies == workers // (self._tensor * self.pipeline_ranks)  # as a mesh is built
        middle = self._tensor * self.pipeline_ranks if whole else self._ranks_of_micro_batches
        return self._tensor, middle, self.replica

    @property
    def unit(self) -> int:
        """Workers of which any multiple can be laid out so."""
        return self.replica

    @property
    def _ranks_of_micro_batches(self) -> int:
        """Workers that have a part each of the same micro-batches, or of the same layers."""
        ranks = 1
        for axis in (self.context, self.expert, self.tensor):
            ranks *= 1 if axis is None else axis.ranks
        return ranks

    @property
    def _tensor(self) -> int:
        return 1 if self.tensor is None else self.tensor.ranks

    @property
    def pipeline_ranks(self) -> int:
        """Workers that have some of the layers each, and all of them together."""
        return 1 if self.pipeline is None else self.pipeline.ranks

    @property
    def pipeline_chunks(self) -> int:
        """Stages that each of them has."""
        return 1 if self.pipeline is None else self.pipeline.chunks

    def data_workers(self, workers: int) -> int:
        """Among how many of `workers` data is divided: a replica is one."""
        return workers // self.replica

    def plan_sums(self, workers: int, micro_batches: int, virtual: int) -> list[SumPlan]:
        """Return who hands over which sums of gradients in a step, on a mesh of `workers`: of whole
        parameters, then of experts that are divided, if they are."""
        alike = workers // self._tensor // self.pipeline_ranks  # ranks that have the same layers
        copies = self.copies(workers // self.pipeline_ranks) or 1
        slices = alike // copies
        parts = self.replica // self._tensor // self.pipeline_ranks
        peers = slices if self.by_micro_batch else 1
        plans = [SumPlan(micro_batches, virtual, slices, parts, copies, peers)]
        if self.expert is not None:
            plans.append(SumPlan(micro_batches, virtual, slices // parts, 1, copies, peers))
        return plans

    def mesh(self, device: "torch.device") -> "WorkerMesh":
        """All ranks of the process group, as they are laid out; each calls it."""
        import torch.distributed as dist  # torch, which run files do without

        from trainrig.parallel.mesh import build_mesh

        context = 1 if self.context is None else self.context.ranks
        expert = 1 if self.expert is None else self.expert.ranks
        copies = self.copies(dist.get_world_size() // self.pipeline_ranks)
        return build_mesh(
            device,
            copies,
            context,
            self._tensor,
            expert=expert,
            pipeline=self.pipeline_ranks,
            chunks=self.pipeline_chunks,
        )

    def copies(self, workers: int) -> int | None:
        """How many of `workers`, which have the same layers, or the same part of each, hold the
        same slices; None: one holds each."""
        return None
