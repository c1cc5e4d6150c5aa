"""Bytes of activations: what layers keep for the backward pass, and what is there for a moment.

Shapes: C channels, H query heads, K key heads, D channels of a head, F between, V vocabulary.
"""

from collections.abc import Sequence

from trainrig.models.architecture.shapes import (
    FeedForwardShape,
    LayerShape,
    MixtureShape,
    ProjectionShape,
)
from trainrig.models.decoder_config import DecoderConfig
from trainrig.parallel.recompute import Full, Selective
from trainrig.train.run_file.training import Training

MASTER = 4  # bytes of a float32
HEAD_BLOCK = 2**28  # logits that are there at once at most: objectives/chunked_head.py, of GPUs


def estimate_at_head(model: DecoderConfig, compute: int, tokens: int) -> float:
    """Bytes of the logits of a block, the gradients of hidden states, and those of the weight."""
    entries, channels = model.outputs, model.logit_channels
    block = min(tokens * entries, max(HEAD_BLOCK, entries))
    return float(compute * (block + 3 * tokens * channels) + MASTER * entries * channels)


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
