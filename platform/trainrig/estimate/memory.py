"""Memory of one device while it trains, as this repository's step takes it.

Bytes for N parameters in all, sliced over S devices, computed in b bytes (4, or 2 in bfloat16):

    weights            4 N / S                 float32 masters
    optimizer          8 N / S                 AdamW's two moments; of others what they declare
                                               (`count_state_bytes` in optim/)
    gradients          4 N / S                 the sum, where the optimizer takes it; of frozen
                                               parameters there is none
    gathered           b N                     parameters of the step (reshard = "step"), or of the
                                               root and two layers ("layer"); 0 on one device
                                               without FSDP (`needs_sharding`)
    summing            4 N                     while several micro-batches are added up (none with
                                               reduce = "micro_batch": slices of sums are there
                                               from the first on), and in deterministic mode
                                               4 N log2(virtual workers a rank); where workers are
                                               no divisor of these, as many more as a virtual
                                               worker has micro-batches
    sending            8 bytes                 in deterministic mode, of each of the three largest
                                               parts gathered by themselves: what is sent, received
    activations        by layer and token      see `estimate_per_token`; and masks, by two
                                               tokens of a row: see estimate/masks.py
    fleeting           b (V + 3 C) a token,    logits of a block (objectives/chunked_head.py) and
                       + 4 V C                 the gradients of the head's weight; or, if more,
                                               b (2 F + C) a token, the gradients within a layer,
                                               and what of that layer is computed again
    passing            4 to 10 bytes           of the largest part that is gathered by itself

Not counted: the device's own context, buffers of collectives, and holes in its allocator; `RESERVE`
of a device's memory is left to them.

Against the allocator's own peaks on the CPU, in 60 steps of a tiny model (1, 2 and 4 ranks, both
precisions, three layouts): 3% off on average, 17% (too little) at worst, in bfloat16 layer by
layer; float32 within 11%. Activations a token within 1%. tests/benchmarks/test_step_memory.py
measures again. On CUDA, whose fused norms keep less, it says more than an H200's allocator reserved
(2026-11-27, bfloat16, one rank): by 2% at 1.3B, 13% at 124M; compiled, by 8% and 26%.

Shapes: C channels, H query heads, K key heads, D channels of a head, F between, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainrig.estimate.masks import NO_MASKS, RowMasks
from trainrig.models.architecture.shapes import (
    FeedForwardShape,
    LayerShape,
    MixtureShape,
    ProjectionShape,
    count,
)
from trainrig.models.decoder_config import DecoderConfig, count_parameters, parameter_shapes
from trainrig.optim.named_groups import count_state_bytes, count_trained
from trainrig.parallel.layout import needs_sharding
from trainrig.parallel.recompute import Full, Selective
from trainrig.train.run_file.training import Training

MASTER = 4  # bytes of a float32
HEAD_BLOCK = 2**28  # logits that are there at once at most: objectives/chunked_head.py, of GPUs
RESERVE = 0.1  # of a device's memory
UNITS_AT_ONCE = 3  # of parallel/exact/deterministic.py: two on their way, and the one that begins


@dataclass(frozen=True)
class Memory:
    """Bytes of one device at the peak of a step, by what they hold."""

    weights: float
    optimizer: float
    gradients: float
    gathered: float
    summing: float
    activations: float
    fleeting: float
    passing: float

    @property
    def total(self) -> float:
        """The peak."""
        held = self.weights + self.optimizer + self.gradients + self.gathered + self.summing
        return held + self.activations + self.fleeting + self.passing

    def fits(self, device: float) -> bool:
        """Whether a device of so many bytes holds it, with `RESERVE` left."""
        return self.total <= device * (1 - RESERVE)


def count_slices(training: Training, workers: int) -> int:
    """Over how many devices the parameters are sliced."""
    if training.parallel.kind == "DDP":
        return 1
    if training.parallel.kind == "HSDP":
        return workers // training.parallel.replicas
    return workers


@dataclass(frozen=True)
class HeldParameters:
    """Of the part of a model that one device works with: how many, and bytes of its slices."""

    total: int  # gathered when they are computed with
    trained: int
    root: int  # of what is gathered with the embedding, head and last norm
    layer: int  # of the largest layer
    layers: int
    weights: float  # bytes of the slices of this device
    optimizer: float  # bytes
    gradients: float  # bytes
    sharded: bool  # whether FSDP gathers them; see parallel/layout.py


@dataclass(frozen=True)
class HeldActivations:
    """Bytes on one device while a micro-batch is computed."""

    kept: float  # for the backward passes that are to come
    in_a_layer: float  # for a moment, within one
    at_the_head: float  # for a moment, at the logits
    buffers: float = 0.0  # of what is sent and received between products


def estimate_step_memory(
    model: DecoderConfig,
    training: Training,
    workers: int,
    global_batch: int,
    micro_batch: int,
    sequence_length: int,
    masks: RowMasks = NO_MASKS,
) -> Memory:
    """Of a step on `global_batch` sequences in micro-batches of `micro_batch`.

    Raises ConfigError while the vocabulary is not settled.
    """
    shapes = parameter_shapes(model)
    total, trained = count_parameters(model).total, count_trained(shapes, training.groups)
    sliced = count_slices(training, workers)
    tokens = micro_batch * sequence_length
    root, layer = _count_unit_parameters(model)
    kept, in_a_layer = (tokens * each for each in estimate_per_token(model, training))
    head = estimate_at_head(model, training.precision.bytes, tokens)
    if (generator := model.generator_model) is not None:  # it goes first, and is kept beside
        own, within = (tokens * each for each in estimate_per_token(generator, training))
        kept, in_a_layer = kept + own, max(in_a_layer, within)
        head = max(head, estimate_at_head(generator, training.precision.bytes, tokens))
    kept += masks.count_kept(model, training, micro_batch, sequence_length)
    return estimate_peak_memory(
        HeldParameters(
            total=total,
            trained=trained,
            root=root,
            layer=layer,
            layers=model.layers,
            weights=MASTER * total / sliced,
            optimizer=count_state_bytes(shapes, training.optimizer, training.groups) / sliced,
            gradients=MASTER * trained / sliced,
            sharded=needs_sharding(workers, training.precision),
        ),
        HeldActivations(kept, in_a_layer, head),
        training,
        workers,
        math.ceil(global_batch / micro_batch / workers),
    )


def estimate_peak_memory(
    held: HeldParameters,
    activations: HeldActivations,
    training: Training,
    workers: int,
    turns: int,
) -> Memory:
    """Of a step in which each of `workers` takes `turns` micro-batches."""
    compute = training.precision.bytes
    root, layer = held.root, held.layer
    gathered = held.total if training.parallel.reshard == "step" else root + 2 * layer
    whole_sums, together = _count_sums(training, workers, turns)
    if not held.sharded:  # weights and gradients stay where they are
        gathered, together = 0, True
    fleeting = max(activations.in_a_layer, activations.at_the_head) + activations.buffers
    passing = _estimate_passing(max(root, layer), compute, together)
    summing = MASTER * held.trained * whole_sums
    # Partial sums are let go unit by unit as they are sent, so they are never beside all slices of
    # the whole sum; activations are gone by then.
    sending = (
        _estimate_sending(root, layer, held.layers)
        if training.deterministic and workers > 1
        else 0.0
    )
    slices_early = 0.0
    if turns > 1 and _reduces_each(training, workers):
        levels = math.log2(training.virtual_workers) + 1 if training.deterministic else 1
        slices_early = held.gradients * math.ceil(levels) + sending
    before = slices_early + summing + compute * gathered + activations.kept + fleeting + passing
    last = 0.0 if sending else passing
    after = sending + last + held.gradients
    early = before >= after
    return Memory(
        weights=held.weights,
        optimizer=held.optimizer,
        gradients=slices_early if early else held.gradients,
        gathered=compute * gathered if early else 0.0,
        summing=summing if early else sending,
        activations=activations.kept if early else 0.0,
        fleeting=fleeting if early else 0.0,
        passing=passing if early else last,
    )


def estimate_at_head(model: DecoderConfig, compute: int, tokens: int) -> float:
    """Bytes of the logits of a block, the gradients of hidden states, and those of the weight."""
    entries, channels = model.outputs, model.logit_channels
    block = min(tokens * entries, max(HEAD_BLOCK, entries))
    return float(compute * (block + 3 * tokens * channels) + MASTER * entries * channels)


def _estimate_passing(unit: int, compute: int, together: bool) -> float:
    """Bytes of one unit's gradients on their way: where they were computed (unless they are added
    up there, or in fewer bytes beside what is added up), and as they are sent."""
    narrow = 0 if compute == MASTER else compute * unit
    return float(MASTER * unit * (1 if together else 2) + narrow)


def _count_unit_parameters(model: DecoderConfig) -> tuple[int, int]:
    """Parameters that are gathered with the root (embedding, head, norm), and with the
    largest layer."""
    shapes = model.shapes
    beside = sum(count(each) - count(each.layers) for each in shapes.beside if each)
    ends = (shapes.before_layers, shapes.norm, shapes.after_layers)
    return count(ends) + beside, max(count(layer) for layer in set(shapes.layers))


def _count_sums(training: Training, workers: int, turns: int) -> tuple[float, bool]:
    """Whole gradients held before the last backward pass; whether micro-batches are added up where
    they were computed."""
    if _reduces_each(training, workers):
        return 0.0, False
    if not training.deterministic:
        return (1.0 if turns > 1 else 0.0), turns > 1
    virtual = min(math.ceil(training.virtual_workers / workers), turns)
    several = turns > virtual
    whole = math.ceil(math.log2(virtual)) + (1.0 if several else 0.0)
    if training.virtual_workers % workers:  # virtual workers have micro-batches on several
        of_one = math.ceil(turns * workers / min(training.virtual_workers, turns * workers))
        whole = min(whole + of_one, max(whole, turns - 1.0))
    return whole, several


def _reduces_each(training: Training, workers: int) -> bool:
    """Whether each micro-batch's gradients are sliced in its own backward pass."""
    each = training.parallel.by_micro_batch
    return each and (not training.deterministic or count_slices(training, workers) > 1)


def _estimate_sending(root: int, layer: int, layers: int) -> float:
    """Bytes of the units on their way at a time, as they are sent and as they are received."""
    largest = sorted([root, *[layer] * min(layers, UNITS_AT_ONCE)], reverse=True)[:UNITS_AT_ONCE]
    return float(2 * MASTER * sum(largest))


def estimate_per_token(model: DecoderConfig, training: Training) -> tuple[float, float]:
    """Bytes a token that all layers together keep for the backward pass, and what there is for a
    moment beside within one of them."""
    shapes = model.shapes
    kept, in_a_layer = estimate_layers_per_token(
        (*shapes.layers, *shapes.further_layers), model, training
    )
    # Of each further head the stream after its layer, the normed one, and the norm's intermediates.
    size = training.precision.bytes
    of_head = model.channels * (2 * size + (6 if size < MASTER else 4))
    return kept + len(shapes.further_layers) * of_head, in_a_layer


def estimate_layers_per_token(
    layers: Sequence[LayerShape], model: DecoderConfig, training: Training, split: int = 1
) -> tuple[float, float]:
    """The same of some of its `layers`, where what flows between products is split over `split`
    devices (sequence parallel: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).

    With everything kept: of the attention its input and the normed one, queries, keys, values and
    what was seen, and of each product that its kind adds (a gate) what is made of it and what that
    changes; of the feed-forward part its input and the normed one, gate, up, SiLU of the gate
    and the product; of each norm, which computes in float32, its intermediates. Of a mixture of
    experts, whose router reads whole rows, see `_estimate_kept_by_mixture`. Selective keeps what
    products gave, those that join the stream before they are split, and the layer's input; Full
    the input alone.
    """
    size = training.precision.bytes
    channels = model.channels
    kinds = {layer: _estimate_all_kept(layer, model, size, split) for layer in set(layers)}
    everything = [kinds[layer] for layer in layers]
    without = {layer: _estimate_kept_products_alone(layer, model, size, split) for layer in kinds}
    selective = [without[layer] for layer in layers]
    again = training.recompute
    kept, computed_again = float(sum(everything)), 0.0
    if isinstance(again, Full):
        dropped = everything[again.every - 1 :: again.every]
        kept = sum(everything) - sum(dropped) + len(dropped) * size * channels / split
        computed_again = max(everything)
    elif isinstance(again, Selective):
        kept = sum(selective)
        computed_again = max(a - b for a, b in zip(everything, selective, strict=True))
    between = max(_compute_feedforward_width(layer) for layer in layers)
    in_a_layer = size * (2 * between + channels / split) + computed_again
    return float(kept), float(in_a_layer)


def _estimate_all_kept(layer: LayerShape, model: DecoderConfig, size: int, split: int) -> float:
    """Bytes a token that `layer` keeps if nothing is computed again."""
    norms = (
        layer.attention_norm,
        layer.attention_output_norm,
        layer.feedforward_norm,
        layer.feedforward_output_norm,
    )
    normed = model.channels * sum(each is not None for each in norms)
    products = _count_product_outputs(layer, model) + _compute_feedforward_width(layer) * (
        2 if _has_gate(layer) else 1
    )
    products += _count_added(layer)
    in_norms = normed * (6 if size < MASTER else 4)
    stream = (size * (2 * model.channels + normed) + in_norms) / split
    return size * products + stream + _estimate_kept_by_mixture(layer, model, size, split)


def _estimate_kept_products_alone(
    layer: LayerShape, model: DecoderConfig, size: int, split: int
) -> float:
    """Bytes a token that `layer` keeps if all but products is computed again: its input, and what
    they gave. What an expert read is a copy, which is made again."""
    mixture, channels = layer.feedforward, model.channels
    products = _count_product_outputs(layer, model) + channels * (1 / split + 1)
    if not isinstance(mixture, MixtureShape):
        return size * (products + channels)
    products -= mixture.experts.up.active * channels
    products += 0 if mixture.shared is None else channels
    return size * products + MASTER * mixture.router.outputs


def _estimate_kept_by_mixture(
    layer: LayerShape, model: DecoderConfig, size: int, split: int
) -> float:
    """Bytes a token that a mixture keeps beside what a dense part would: of each expert a logit and
    a score, of each active one its number, its place in two orders and two weights; and the input,
    which a router reads in float32 and as whole rows."""
    mixture = layer.feedforward
    if not isinstance(mixture, MixtureShape):
        return 0.0
    experts, active = mixture.router.outputs, mixture.experts.up.active
    routing = 2 * MASTER * experts + 32 * active + 3 * MASTER
    read_beside = size < MASTER and mixture.shared is not None
    whole = MASTER + (size if read_beside else 0)
    return routing + model.channels * (whole - size / split)


def _count_product_outputs(layer: LayerShape, model: DecoderConfig) -> int:
    """Numbers a token that the products of `layer` give, but for those that join the stream; an
    expert's input is a copy."""
    shape, mixture = model.shape, layer.feedforward
    heads = shape.head_channels * 2 * (shape.heads + shape.kv_heads)  # q, k, v and what was seen
    copies = 0
    if isinstance(mixture, MixtureShape):
        copies = 2 * mixture.experts.up.active * shape.channels  # what goes in and what comes out
    return (
        heads
        + copies
        + _count_added(layer)
        + _compute_feedforward_width(layer) * (2 if _has_gate(layer) else 1)
    )


def _count_added(layer: LayerShape) -> int:
    """Numbers a token that the products give which its kind of attention adds."""
    added = layer.attention.added.values()
    return sum(each.outputs for each in added if isinstance(each, ProjectionShape))


def _compute_feedforward_width(layer: LayerShape) -> int:
    """Width of the feed-forward part of `layer`, of all networks that a token goes through."""
    part = layer.feedforward
    if isinstance(part, FeedForwardShape):
        return part.up.outputs
    shared = 0 if part.shared is None else part.shared.up.outputs
    return part.experts.up.active * part.experts.up.outputs + shared


def _has_gate(layer: LayerShape) -> bool:
    part = layer.feedforward
    return (part.gate if isinstance(part, FeedForwardShape) else part.experts.gate) is not None


def estimate_cache_memory(model: DecoderConfig, positions: int, size: int = 2) -> float:
    """Bytes of the keys and values of one sequence of so many positions, in numbers of `size` bytes
    (2: bfloat16); a layer with a window holds no more than that."""
    shape, window = model.shape, model.attention.window
    held = sum(
        min(positions, window.size) if window and window.is_local(layer) else positions
        for layer in range(model.layers)
    )
    return 2.0 * size * shape.kv_heads * shape.head_channels * held
