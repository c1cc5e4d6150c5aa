"""Choice of the layers that recompute, so that saved activations fit a memory budget.

The choice depends on the run file alone, not on the number of workers: recomputed values have the
same bits as the first time, but compiled layers give other bits for each choice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.parallel import layer_bytes
from trainrig.parallel.axes.pipeline_schedule import cut_for_ranks, find_held_at_once, plan_turns
from trainrig.parallel.precision import Precision
from trainrig.parallel.recompute import Budget, Kept
from trainrig.parallel.worker_layout import WorkerLayout

GIB = 2**30


@dataclass(frozen=True)
class Room:
    """The budget, and everything else that decides how much layers keep."""

    budget: Budget
    layout: WorkerLayout
    precision: Precision
    tokens: int  # tokens of the largest micro-batch of a replica
    lora: LoRA | None = None


def plan_kept(model: DecoderConfig, room: Room, rank: int = 0) -> tuple[Kept, ...]:
    """Return what each layer keeps for the backward pass, in the order of the layers.

    The layers are those of the pipeline worker `rank`, or, without a pipeline, all layers, the ones
    of further heads included. As few layers as possible recompute, and the cheapest recomputation
    is used first.

    Raises ConfigError if the inputs of the layers alone exceed the budget (the message gives the
    smallest budget that works), and for models that are not decoders.
    """
    if type(model) is not DecoderConfig:
        raise ConfigError(
            "training.recompute: the memory estimate does not support models of kind "
            f'{model.kind}; set kind = "Full" or "Selective" instead of "Budget"'
        )
    bytes_of = _list_bytes(model, room, rank)
    limit = room.budget.gib * GIB
    chosen = list[Kept](["all"] * len(bytes_of))
    total = sum(sizes["all"] for sizes in bytes_of)
    for what in _list_ways(room.layout):
        for number, sizes in enumerate(bytes_of):
            if total <= limit:
                return tuple(chosen)
            total += sizes[what] - sizes[chosen[number]]
            chosen[number] = what
    if total > limit:
        least = math.ceil(total / GIB * 1000) / 1000
        raise ConfigError(
            f"training.recompute.gib ({room.budget.gib:g}) is below the {least:g} GiB that the "
            f"inputs of {len(bytes_of)} layers need on a device; set it to that or more, or use a "
            "smaller micro_batch"
        )
    return tuple(chosen)


def _list_ways(layout: WorkerLayout) -> tuple[Kept, ...]:
    """Return the ways to keep less, from the cheapest to recompute to the most expensive.

    Selective recomputation loses count of experts that are gathered within layers. With expert
    parallelism a layer therefore keeps either everything or its input alone.
    """
    return ("input",) if layout.expert else ("products", "input")


def _list_bytes(model: DecoderConfig, room: Room, rank: int) -> list[dict[Kept, float]]:
    """Return the bytes that each layer of `rank` keeps on a device under each choice of `Kept`."""
    layout = room.layout
    local = layer_bytes.cut_model(model, layout.tensor_ranks, layout.expert_ranks)
    shapes = layer_bytes.cut_shapes(model, layout.tensor_ranks, layout.expert_ranks)
    adapters = layer_bytes.list_layer_adapters(model, room.lora)
    tokens = math.ceil(room.tokens / (layout.context_ranks * layout.expert_ranks))
    size = room.precision.bytes
    every = (*shapes.layers, *shapes.further_layers)
    gathered = estimate_gathered_rows(local, layout, size)
    found = []
    for number, held in _number_held(model, layout, rank, len(every)):
        kept = layer_bytes.estimate_kept(
            every[number], adapters[number], local, size, layout.stream_ranks
        )
        kept["all"] += gathered
        found.append({what: held * tokens * a_token for what, a_token in kept.items()})
    return found


def _number_held(
    model: DecoderConfig, layout: WorkerLayout, rank: int, layers: int
) -> Sequence[tuple[int, int]]:
    """Return (number, micro-batches held) for each layer of `rank`.

    Micro-batches held are those between the forward and the backward pass of the layer, at the
    moment when all stages of the rank together hold the most, for steps of any length.
    """
    pipeline = layout.pipeline
    if pipeline is None:
        return [(number, 1) for number in range(layers)]
    # long enough for the pipeline schedule to reach its steady state
    count = 4 * pipeline.ranks * pipeline.chunks
    held = count_held_at_once(layout, rank, count)
    stages = cut_for_ranks(model, pipeline.ranks, pipeline.chunks)[rank]
    return [(number, held[chunk]) for chunk, own in enumerate(stages) for number in own]


def count_held_at_once(layout: WorkerLayout, rank: int, count: int) -> list[int]:
    """Return how many micro-batches each stage of `rank` holds between forward and backward pass.

    They are counted at the moment when all stages of the rank together hold the most, in a step of
    `count` micro-batches.
    """
    pipeline = layout.pipeline
    if pipeline is None:
        return [1]
    order = plan_turns(pipeline.schedule, rank, pipeline.ranks, count, pipeline.chunks)
    held = find_held_at_once(order)
    return [sum(turn.chunk == chunk for turn in held) for chunk in range(pipeline.chunks)]


def estimate_gathered_rows(local: DecoderConfig, layout: WorkerLayout, size: int) -> float:
    """Return the bytes of other workers' keys and values that a layer keeps, per local token.

    They are 0 unless context parallelism gathers whole rows.
    """
    context = layout.context
    if context is None or context.keys != "gather":
        return 0.0
    return (context.ranks - 1) * layer_bytes.estimate_keys_and_values(local, size)


def describe_kept(kept: Sequence[Kept]) -> str:
    """Return in words how many layers keep everything, the outputs of products, or their input."""
    said: dict[Kept, str] = {
        "all": "all",
        "products": "the outputs of products",
        "input": "their input",
    }
    return ", ".join(f"{kept.count(kind)} {said[kind]}" for kind in said if kind in kept)
