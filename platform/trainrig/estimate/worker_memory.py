"""Peak memory of a worker, where workers divide rows, layers or experts.

Computed by `estimate.memory` for the part of the model that one worker has
(`estimate.model_share`):

    tensor     heads, feed-forward channels and vocabulary entries are divided; the residual stream
               is whole on each worker, with a second copy while it is summed; with
               `sequence_parallel` it is divided as well, and gathered temporarily
    expert     experts and the rows of a micro-batch are divided
    context    each row is divided; `Gathered` has the keys and values of whole rows, in each layer
               until its backward pass unless recomputed; `RingAttention` has those of two workers
               at a time
    pipeline   layers are divided; a stage keeps as many micro-batches as its schedule says
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from trainrig.estimate import activation_bytes, step_memory
from trainrig.estimate.held_parameters import EndParts, GatheredBytes, ModelRole
from trainrig.estimate.model_share import CountedParameters, ModelParts, Slices, slice_parameters
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.parallel import activation_budget
from trainrig.parallel.axes.pipeline_schedule import cut_for_ranks
from trainrig.parallel.layer_bytes import cut_model, cut_shapes, list_layer_adapters
from trainrig.parallel.recompute import Budget, choose_kept
from trainrig.train.run_file.training_settings import Training


def estimate_worker_memory(
    model: DecoderConfig,
    training: Training,
    workers: int,
    global_batch: int,
    micro_batch: int,
    sequence_length: int,
    masks: activation_bytes.RowMasks = activation_bytes.NO_MASKS,
    tuning: step_memory.TuningStep = step_memory.PRETRAINING,
) -> step_memory.Memory:
    """Return the memory of the worker that needs the most, in a step or in a save.

    The step has `global_batch` sequences, of which a replica takes `micro_batch` at a time. Raises
    ConfigError while the vocabulary size is unknown.
    """
    parallel = training.parallel
    if parallel.replica == 1:
        sizes = global_batch, micro_batch, sequence_length
        return step_memory.estimate_step_memory(model, training, workers, *sizes, masks, tuning)
    tensor = 1 if parallel.tensor is None else parallel.tensor.ranks
    expert = 1 if parallel.expert is None else parallel.expert.ranks
    context = 1 if parallel.context is None else parallel.context.ranks
    replicas = parallel.data_workers(workers)
    count = math.ceil(global_batch / micro_batch / replicas)
    local = cut_model(model, tensor, expert)
    shapes = cut_shapes(model, tensor, expert)
    role = ModelRole.of(training, tuning.lora)
    parts = ModelParts.of(model, training, tensor, expert, role)
    adapters = list_layer_adapters(model, tuning.lora)
    ranks = parallel.pipeline_ranks
    chunks = parallel.pipeline_chunks
    over = training.parallel.count_slices(workers // (tensor * ranks))
    tokens = math.ceil(micro_batch * sequence_length / (context * expert))
    places = tuning.places and math.ceil(tuning.places / (context * expert))
    of_places = tensor if parallel.tensor and parallel.tensor.sequence_parallel else 1
    mask = masks.count_kept(model, training, micro_batch / expert, sequence_length)
    others = activation_budget.estimate_gathered_rows(local, parallel, training.precision.bytes)
    again = None if isinstance(training.recompute, Budget) else training.recompute
    found = []
    for rank, stages in enumerate(cut_for_ranks(model, ranks, chunks)):
        counted, ends = parts.count_with_ends(stages)
        mine = slice_parameters(counted, over, expert, tensor, parts.hosted)
        kept = 0.0
        in_a_layer = 0.0
        held = activation_budget.count_held_at_once(parallel, rank, count)
        planned = activation_bytes.find_kept(
            model, training, micro_batch * sequence_length, tuning.lora, rank
        )
        what = list(planned or choose_kept(sum(map(len, stages)), again))
        for chunk, layers in enumerate(stages):
            own = [shapes.layers[number] for number in layers]
            theirs = [adapters[number] for number in layers]
            keeps, what = what[: len(own)], what[len(own) :]
            of_chunk, widest = activation_bytes.estimate_layers_per_token(
                own, local, training, of_places, theirs, keeps
            )
            of_chunk += keeps.count("all") * others
            kept += of_chunk * (1 if training.offload.activations else held[chunk])
            in_a_layer = max(in_a_layer, widest)
        last = stages[-1].stop == model.layers
        size = training.precision.bytes
        there = replace(tuning, places=places)
        head = _estimate_at_head(local, tokens, size, there, tensor) if last else 0.0
        kept = kept * tokens + mask * sum(held)
        activations = step_memory.HeldActivations(
            kept=kept
            + (
                activation_bytes.estimate_restored_head(local, training, tuning.lora)
                if last
                else 0.0
            ),
            in_a_layer=in_a_layer * tokens
            + activation_bytes.estimate_restored_weight(local, training, tuning.lora),
            at_the_head=head,
            buffers=tokens * _estimate_received(local, training, context),
        )
        parameters = _hold_parts(parts, counted, ends, mine, stages, tuning.lora is not None)
        if tuning.beside is not None:
            parameters = parameters.hold_beside(tuning.beside, size)
        found.append(
            step_memory.estimate_peak_memory(parameters, activations, training, replicas, count)
        )
        found.append(mine.in_a_save)
    return max(found, key=lambda memory: memory.total)


def _hold_parts(
    parts: ModelParts,
    counted: CountedParameters,
    ends: Sequence[CountedParameters],
    mine: Slices,
    stages: Sequence[range],
    adapted: bool,
) -> step_memory.HeldParameters:
    """Return what a device with the layers `stages` of a model holds.

    `counted` are all of its parameters, `ends` those outside the layers.
    """
    numbers = [number for layers in stages for number in layers]
    counts = [parts.layers[number + 1] - parts.layers[number] for number in numbers]
    gathered = None
    layer_sent = max(parts.layer[n] for n in numbers)
    ends_sent = EndParts(*(end.total for end in ends))
    if adapted:  # Frozen parameters are gathered as stored, and have no gradient to send.
        largest = max(layer.gathered for layer in counts)
        root = EndParts(*(end.gathered for end in ends)).after_layers
        gathered = GatheredBytes(counted.gathered, root, largest)
        ends_sent = EndParts(*(end.trained for end in ends))
        layer_sent = max(layer.trained for layer in counts)
    return step_memory.HeldParameters(
        total=counted.total,
        trained=counted.trained,
        ends=ends_sent,
        layer=layer_sent,
        layers=len(numbers),
        weights=mine.weights,
        optimizer=mine.optimizer,
        gradients=mine.gradients,
        sharded=True,
        gathered=gathered,
    )


def _estimate_at_head(
    local: DecoderConfig, tokens: int, size: int, tuning: step_memory.TuningStep, tensor: int
) -> float:
    """Return the bytes at the logits.

    A vocabulary that a tensor group divides is computed in blocks, whatever the logits are for.
    """
    if tuning.places is not None and tensor > 1:
        return activation_bytes.estimate_at_head(local, size, tuning.places, None, tuning.lora)
    head = activation_bytes.estimate_at_head(local, size, tokens, tuning.places, tuning.lora)
    if tuning.activations_beside:
        return max(head, size * (tuning.places or 0) * local.outputs + tuning.activations_beside)
    return head


def _estimate_received(local: DecoderConfig, training: Training, context: int) -> float:
    """Return the temporary bytes, for each of a worker's tokens, of data from other workers."""
    parallel = training.parallel
    stream = float(training.precision.bytes * local.channels)
    found = 0.0
    if parallel.tensor:  # the summed stream; or the gathered stream and the gradient of it
        found += 2 * stream if parallel.tensor.sequence_parallel else stream
    if parallel.pipeline:  # the input from the previous stage, and the gradient from the next
        tensor = parallel.tensor
        found += 2 * stream / (tensor.ranks if tensor and tensor.sequence_parallel else 1)
    if parallel.context:
        others = context - 1 if parallel.context.keys == "gather" else 2
        found += others * activation_budget.estimate_keys_and_values(
            local, training.precision.bytes
        )
    return found
