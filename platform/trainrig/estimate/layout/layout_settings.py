"""Conversion between layouts of the planner and the value of `training.parallel` in a run file."""

from typing import Any

from trainrig.estimate.fitting_layouts import RecomputeChoice
from trainrig.estimate.layout.layouts import Degrees, DeviceLayout
from trainrig.parallel.layout import DDP, FSDP, HSDP, Layout
from trainrig.parallel.recompute import Full, Recompute
from trainrig.train.run_file.training_settings import Training


def build_parallel(layout: DeviceLayout) -> Layout:
    """Return `layout` as the value of `training.parallel` in a run file."""
    degrees = layout.degrees
    axes: dict[str, Any] = {
        axis: {"ranks": getattr(degrees, axis)}
        for axis in ("tensor", "pipeline", "context", "expert")
        if getattr(degrees, axis) > 1
    }
    if "pipeline" in axes:
        axes["pipeline"] |= {"schedule": layout.schedule, "chunks": layout.chunks}
    if "tensor" in axes:
        axes["tensor"]["sequence_parallel"] = layout.sequence_parallel
    if "context" in axes:
        axes["context"]["kind"] = "Gathered"  # the only kind that the planner models
    if degrees.replicate == 1:
        return FSDP.model_validate({"reshard": layout.reshard, "reduce": layout.reduce, **axes})
    if degrees.shard * degrees.context * degrees.expert == 1:
        return DDP.model_validate(axes)
    sliced = {"replicas": degrees.replicate, "reshard": layout.reshard, "reduce": layout.reduce}
    return HSDP.model_validate({**sliced, **axes})


def read_layout(training: Training, workers: int, micro_batch: int) -> DeviceLayout | None:
    """Return the planner's layout that is nearest to `training.parallel` on `workers` workers.

    `micro_batch` has the rows of all workers that share a micro-batch. Ring attention counts as
    gathered keys, a memory budget as selective recomputation, and layers of which some are
    recomputed as all of them. None if the planner has no such layout.
    """
    parallel = training.parallel
    data = parallel.data_workers(workers)
    shared = parallel.context_ranks * parallel.expert_ranks
    copies = 1
    if not parallel.sharded:
        copies = data
    elif parallel.groups is not None:
        copies = parallel.groups
    if data % copies or micro_batch % parallel.expert_ranks:
        return None
    if not parallel.sharded and min(copies, shared) > 1:  # whole copies with shared rows or experts
        return None
    pipeline = parallel.pipeline
    return DeviceLayout(
        Degrees(
            replicate=copies,
            shard=data // copies,
            tensor=parallel.tensor_ranks,
            pipeline=parallel.pipeline_ranks,
            context=parallel.context_ranks,
            expert=parallel.expert_ranks,
        ),
        micro_batch // parallel.expert_ranks,
        _find_recomputation(training.recompute),
        parallel.reshard,
        pipeline.schedule if pipeline is not None else None,
        parallel.pipeline_chunks,
        parallel.tensor is None or parallel.tensor.sequence_parallel,
        "micro_batch" if parallel.by_micro_batch else "step",
    )


def _find_recomputation(settings: Recompute | None) -> RecomputeChoice:
    if settings is None:
        return "nothing"
    return "full" if isinstance(settings, Full) else "selective"
