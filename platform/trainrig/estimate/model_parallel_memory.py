"""Peak memory of a worker, where workers divide rows, layers or experts.

Computed by `estimate.step_memory` for the part of the model that one worker has
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

from trainrig.estimate import activation_bytes, held_parameters, step_memory
from trainrig.estimate.model_share import ModelParts, slice_parameters
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.parallel import activation_budget
from trainrig.parallel.axes.pipeline_schedule import cut_for_ranks
from trainrig.parallel.layer_bytes import (
    cut_model,
    cut_shapes,
    estimate_keys_and_values,
    list_layer_adapters,
)
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
    tensor = parallel.tensor_ranks
    expert = parallel.expert_ranks
    ranks = parallel.pipeline_ranks
    size = training.precision.bytes
    replicas = parallel.data_workers(workers)
    count = math.ceil(global_batch / micro_batch / replicas)
    local = cut_model(model, tensor, expert)
    role = held_parameters.ModelRole.of(training, tuning.lora)
    parts = ModelParts.of(model, training, tensor, expert, role)
    over = parallel.count_slices(workers // (tensor * ranks))
    shared_by = parallel.context_ranks * expert
    tokens = math.ceil(micro_batch * sequence_length / shared_by)
    there = replace(tuning, places=tuning.places and math.ceil(tuning.places / shared_by))
    mask = masks.count_kept(model, training, micro_batch / expert, sequence_length)
    found = []
    for rank, stages in enumerate(cut_for_ranks(model, ranks, parallel.pipeline_chunks)):
        counted, ends = parts.count_with_ends(stages)
        mine = slice_parameters(counted, over, expert, tensor, parts.hosted)
        held = activation_budget.count_held_at_once(parallel, rank, count)
        kept, in_a_layer = _estimate_layers(
            model, training, tuning.lora, micro_batch * sequence_length, rank, stages, held
        )
        kept = kept * tokens + mask * sum(held)
        in_a_layer *= tokens
        head = 0.0
        if stages[-1].stop == model.layers:
            head = _estimate_at_head(local, tokens, size, there, tensor)
            kept += activation_bytes.estimate_restored_head(local, training, tuning.lora)
        activations = step_memory.HeldActivations(
            kept=kept,
            in_a_layer=in_a_layer
            + activation_bytes.estimate_restored_weight(local, training, tuning.lora),
            at_the_head=head,
            buffers=tokens * _estimate_received(local, training),
        )
        parameters = parts.hold(stages, ends, mine, adapted=tuning.lora is not None)
        if tuning.beside is not None:
            parameters = parameters.hold_beside(tuning.beside, size)
        found.append(
            step_memory.estimate_peak_memory(parameters, activations, training, replicas, count)
        )
        found.append(mine.in_a_save)
    return max(found, key=lambda memory: memory.total)


def _estimate_layers(
    model: DecoderConfig,
    training: Training,
    lora: LoRA | None,
    tokens: int,
    rank: int,
    stages: Sequence[range],
    held: Sequence[int],
) -> tuple[float, float]:
    """Return the bytes per token that the layers of a pipeline rank keep, and those within one.

    `tokens` is the size of a replica's micro-batch. `held` has the number of micro-batches that
    each of `stages` keeps at once.
    """
    parallel = training.parallel
    local = cut_model(model, parallel.tensor_ranks, parallel.expert_ranks)
    shapes = cut_shapes(model, parallel.tensor_ranks, parallel.expert_ranks)
    adapters = list_layer_adapters(model, lora)
    gathered = activation_budget.estimate_gathered_rows(local, parallel, training.precision.bytes)
    again = None if isinstance(training.recompute, Budget) else training.recompute
    planned = activation_bytes.find_kept(model, training, tokens, lora, rank)
    what = list(planned or choose_kept(sum(map(len, stages)), again))
    kept = 0.0
    in_a_layer = 0.0
    for chunk, layers in enumerate(stages):
        keeps = what[: len(layers)]
        what = what[len(layers) :]
        of_chunk, widest = activation_bytes.estimate_layers_per_token(
            [shapes.layers[number] for number in layers],
            local,
            training,
            parallel.stream_ranks,
            [adapters[number] for number in layers],
            keeps,
        )
        of_chunk += keeps.count("all") * gathered
        kept += of_chunk * (1 if training.offload.activations else held[chunk])
        in_a_layer = max(in_a_layer, widest)
    return kept, in_a_layer


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


def _estimate_received(local: DecoderConfig, training: Training) -> float:
    """Return the temporary bytes, for each of a worker's tokens, of data from other workers."""
    parallel = training.parallel
    size = training.precision.bytes
    found = estimate_stream_buffers(
        float(size * local.channels),
        parallel.tensor_ranks,
        parallel.stream_ranks,
        parallel.pipeline_ranks,
    )
    if parallel.context:
        others = parallel.context_ranks - 1 if parallel.context.keys == "gather" else 2
        found += others * estimate_keys_and_values(local, size)
    return found


def estimate_stream_buffers(stream: float, tensor: int, split: int, pipeline: int) -> float:
    """Return the bytes of activations between layers that a device receives from others.

    `stream` is their size on one device of a context group. From its group of `tensor` devices, of
    which `split` divide the activations, a device receives them gathered, with their gradient, or
    summed. From neighbouring stages of a pipeline it receives the input and the gradient.
    """
    found = 0.0
    if tensor > 1:
        found += (2 if split > 1 else 1) * stream
    if pipeline > 1:
        found += 2 * stream / split
    return found
