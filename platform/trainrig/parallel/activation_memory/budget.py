"""Which layers compute again, for all to keep no more than a device has room for.

A function of the run file alone, not of the workers that there are: what is computed again has the
bits of the first time, but compiled layers have others for each choice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainrig.errors import ConfigError
from trainrig.models.architecture.shapes import LayerShape
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.lora.settings import LoRA
from trainrig.parallel.activation_memory.layer_bytes import (
    LayerAdapters,
    estimate_all_kept,
    estimate_kept_products,
    list_layer_adapters,
)
from trainrig.parallel.activation_memory.local_shapes import cut_model, cut_shapes
from trainrig.parallel.activation_memory.recompute import Budget, Kept
from trainrig.parallel.layout_contract import WorkerLayout
from trainrig.parallel.pipeline.cut import cut_for_ranks
from trainrig.parallel.pipeline.schedule import find_held_at_once, plan_turns
from trainrig.parallel.precision import Precision

GIB = 2**30


@dataclass(frozen=True)
class Room:
    """What decides how much layers keep."""

    budget: Budget
    layout: WorkerLayout
    precision: Precision
    tokens: int  # of the largest micro-batch of a replica
    lora: LoRA | None = None


def plan_kept(model: DecoderConfig, room: Room, rank: int = 0) -> tuple[Kept, ...]:
    """What each layer keeps of those of the `rank`-th worker of a pipeline, in its order; without
    one, of all, also those of further heads.

    Raises ConfigError, with the least that would do, if their inputs alone are above the budget,
    and for what is no decoder.
    """
    if type(model) is not DecoderConfig:
        raise ConfigError(
            f"training.recompute: what layers of a model of kind {model.kind} keep is not "
            'reckoned; set kind = "Full" or "Selective" instead of "Budget"'
        )
    bytes_of = _list_bytes(model, room, rank)
    limit, chosen = room.budget.gib * GIB, list[Kept](["all"] * len(bytes_of))
    total = sum(each["all"] for each in bytes_of)
    for what in _list_ways(room.layout):
        for number, each in enumerate(bytes_of):
            if total <= limit:
                return tuple(chosen)
            total += each[what] - each[chosen[number]]
            chosen[number] = what
    if total > limit:
        least = math.ceil(total / GIB * 1000) / 1000
        raise ConfigError(
            f"training.recompute.gib ({room.budget.gib:g}) is below the {least:g} GiB that the "
            f"inputs of {len(bytes_of)} layers take on a device; set it to that at least, or take "
            "a smaller micro_batch"
        )
    return tuple(chosen)


def _list_ways(layout: WorkerLayout) -> tuple[Kept, ...]:
    """From the cheapest to compute again on. Selective recomputation loses count of experts that
    are gathered within layers, so beside them a layer keeps all or its input."""
    return ("input",) if layout.expert else ("products", "input")


def _list_bytes(model: DecoderConfig, room: Room, rank: int) -> list[dict[Kept, float]]:
    """Bytes of a device that each layer of `rank` keeps, by what it keeps."""
    layout = room.layout
    tensor = 1 if layout.tensor is None else layout.tensor.ranks
    expert = 1 if layout.expert is None else layout.expert.ranks
    context = 1 if layout.context is None else layout.context.ranks
    split = tensor if layout.tensor and layout.tensor.sequence_parallel else 1
    local, shapes = cut_model(model, tensor, expert), cut_shapes(model, tensor, expert)
    adapters = list_layer_adapters(model, room.lora)
    tokens = math.ceil(room.tokens / (context * expert))
    size, every = room.precision.bytes, (*shapes.layers, *shapes.further_layers)
    others = estimate_gathered_rows(local, layout, size)

    def measure(layer: LayerShape, own: LayerAdapters | None, held: int) -> dict[Kept, float]:
        return {
            "all": held * tokens * (estimate_all_kept(layer, own, local, size, split) + others),
            "products": held * tokens * estimate_kept_products(layer, own, local, size, split),
            "input": held * tokens * size * model.channels / split,
        }

    return [
        measure(every[number], adapters[number], held)
        for number, held in _number_held(model, layout, rank, len(every))
    ]


def _number_held(
    model: DecoderConfig, layout: WorkerLayout, rank: int, layers: int
) -> Sequence[tuple[int, int]]:
    """Of each layer of `rank` its number, and the micro-batches that are between its passes when
    the most passes of all its stages together are, however many micro-batches a step has."""
    pipeline = layout.pipeline
    if pipeline is None:
        return [(number, 1) for number in range(layers)]
    count = 4 * pipeline.ranks * pipeline.chunks  # the schedule has long run in
    held = count_held_at_once(layout, rank, count)
    stages = cut_for_ranks(model, pipeline.ranks, pipeline.chunks)[rank]
    return [(number, held[chunk]) for chunk, own in enumerate(stages) for number in own]


def count_held_at_once(layout: WorkerLayout, rank: int, count: int) -> list[int]:
    """Micro-batches of a step's `count` that each stage of `rank` has between their passes, when
    all of them together have the most."""
    pipeline = layout.pipeline
    if pipeline is None:
        return [1]
    order = plan_turns(pipeline.schedule, rank, pipeline.ranks, count, pipeline.chunks)
    held = find_held_at_once(order)
    return [sum(turn.chunk == chunk for turn in held) for chunk in range(pipeline.chunks)]


def estimate_keys_and_values(local: DecoderConfig, size: int) -> float:
    """Bytes a token of those of one layer, in numbers of `size` bytes."""
    return 2.0 * size * local.shape.kv_heads * local.shape.head_channels


def estimate_gathered_rows(local: DecoderConfig, layout: WorkerLayout, size: int) -> float:
    """Bytes a token of its own that a layer keeps of other workers' tokens."""
    context = layout.context
    if context is None or context.kind != "Gathered":
        return 0.0
    return (context.ranks - 1) * estimate_keys_and_values(local, size)


def describe_kept(kept: Sequence[Kept]) -> str:
    """How many layers keep what, for people."""
    said: dict[Kept, str] = {
        "all": "all",
        "products": "what products gave",
        "input": "their input",
    }
    return ", ".join(f"{kept.count(each)} {said[each]}" for each in said if each in kept)
