"""Memory of the worker that holds the most, where workers share rows, layers or experts.

By `estimate.memory`, of the part of the model that one worker has (`estimate.model_share`):

    tensor     heads, feed-forward channels and entries of the vocabulary are divided; what flows
               between layers is whole on each worker, and once more while it is added up; with
               `sequence_parallel` that is divided as well, and gathered for a moment
    expert     experts and the rows of a micro-batch are divided
    context    each row is divided; `Gathered` has the keys and values of whole rows, in each layer
               until its backward pass unless that computes them again; `RingAttention` has two
               workers' at a time
    pipeline   layers are divided; a stage keeps as many micro-batches as its schedule says
"""

import math

from trainrig.estimate.activations import estimate_at_head, estimate_layers_per_token
from trainrig.estimate.masks import NO_MASKS, RowMasks
from trainrig.estimate.memory import (
    HeldActivations,
    HeldParameters,
    Memory,
    count_slices,
    estimate_peak_memory,
    estimate_step_memory,
)
from trainrig.estimate.model_share import (
    ModelParts,
    cut_model,
    cut_shapes,
    slice_parameters,
)
from trainrig.models.decoder_config import DecoderConfig
from trainrig.parallel.pipeline.cut import cut_for_ranks
from trainrig.parallel.pipeline.schedule import find_held_at_once, plan_turns
from trainrig.train.run_file.training import Training


def estimate_worker_memory(
    model: DecoderConfig,
    training: Training,
    workers: int,
    global_batch: int,
    micro_batch: int,
    sequence_length: int,
    masks: RowMasks = NO_MASKS,
) -> Memory:
    """Of a step on `global_batch` sequences, of which a replica takes `micro_batch` at a time; of a
    save, if that takes more.

    Raises ConfigError while the vocabulary is not settled.
    """
    parallel = training.parallel
    if parallel.replica == 1:
        sizes = global_batch, micro_batch, sequence_length
        return estimate_step_memory(model, training, workers, *sizes, masks)
    tensor = 1 if parallel.tensor is None else parallel.tensor.ranks
    expert = 1 if parallel.expert is None else parallel.expert.ranks
    context = 1 if parallel.context is None else parallel.context.ranks
    replicas = parallel.data_workers(workers)
    count = math.ceil(global_batch / micro_batch / replicas)
    local, shapes = cut_model(model, tensor, expert), cut_shapes(model, tensor, expert)
    parts = ModelParts.of(model, training, tensor, expert)
    ranks, chunks = parallel.pipeline_ranks, parallel.pipeline_chunks
    over = count_slices(training, workers // (tensor * ranks))
    tokens = math.ceil(micro_batch * sequence_length / (context * expert))
    of_places = tensor if parallel.tensor and parallel.tensor.sequence_parallel else 1
    mask = masks.count_kept(model, training, micro_batch / expert, sequence_length)
    found = []
    for rank, stages in enumerate(cut_for_ranks(model, ranks, chunks)):
        counted, root = parts.count_held(stages)
        mine = slice_parameters(counted, over, expert, tensor)
        kept, in_a_layer = 0.0, 0.0
        held = _count_held_at_once(training, rank, count)
        for chunk, layers in enumerate(stages):
            own = [shapes.layers[number] for number in layers]
            of_chunk, widest = estimate_layers_per_token(own, local, training, of_places)
            of_chunk += len(own) * _estimate_gathered_rows(local, training, context)
            kept += of_chunk * held[chunk]
            in_a_layer = max(in_a_layer, widest)
        last = stages[-1].stop == model.layers
        size = training.precision.bytes
        activations = HeldActivations(
            kept=kept * tokens + mask * sum(held),
            in_a_layer=in_a_layer * tokens,
            at_the_head=estimate_at_head(local, size, tokens) if last else 0.0,
            buffers=tokens * _estimate_received(local, training, context),
        )
        parameters = HeldParameters(
            total=counted.total,
            trained=counted.trained,
            root=root,
            layer=max(parts.layer[number] for layers in stages for number in layers),
            layers=sum(map(len, stages)),
            weights=mine.weights,
            optimizer=mine.optimizer,
            gradients=mine.gradients,
            sharded=True,
        )
        found.append(estimate_peak_memory(parameters, activations, training, replicas, count))
        found.append(mine.in_a_save)
    return max(found, key=lambda each: each.total)


def _count_held_at_once(training: Training, rank: int, count: int) -> list[int]:
    """Micro-batches of a step's `count` that each stage of `rank` has between their passes, when
    all of them together have the most."""
    pipeline = training.parallel.pipeline
    if pipeline is None:
        return [1]
    order = plan_turns(pipeline.schedule, rank, pipeline.ranks, count, pipeline.chunks)
    held = find_held_at_once(order)
    return [sum(turn.chunk == chunk for turn in held) for chunk in range(pipeline.chunks)]


def _estimate_keys_and_values(local: DecoderConfig, training: Training) -> float:
    """Bytes a token of those of one layer."""
    return 2.0 * training.precision.bytes * local.shape.kv_heads * local.shape.head_channels


def _estimate_gathered_rows(local: DecoderConfig, training: Training, context: int) -> float:
    """Bytes a token of its own that a layer keeps of other workers' tokens."""
    settings = training.parallel.context
    if settings is None or settings.kind != "Gathered" or training.recompute is not None:
        return 0.0
    return (context - 1) * _estimate_keys_and_values(local, training)


def _estimate_received(local: DecoderConfig, training: Training, context: int) -> float:
    """Bytes a token of its own of what other workers send, for a moment."""
    parallel, stream = training.parallel, float(training.precision.bytes * local.channels)
    found = 0.0
    if parallel.tensor:  # what is added up; or what is gathered, and what comes back to it
        found += 2 * stream if parallel.tensor.sequence_parallel else stream
    if parallel.pipeline:  # from the stage before, and the gradient from the one after
        tensor = parallel.tensor
        found += 2 * stream / (tensor.ranks if tensor and tensor.sequence_parallel else 1)
    if parallel.context:
        others = context - 1 if parallel.context.kind == "Gathered" else 2
        found += others * _estimate_keys_and_values(local, training)
    return found
