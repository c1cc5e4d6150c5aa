"""Estimates of the bytes that a layer keeps for the backward pass, and of a device's part of it.

Shapes: C channels of the residual stream, H query heads, K key heads, D channels of a head, F
channels of the feed-forward part's hidden layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts, ParallelBlock
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.models.architecture.shapes import (
    DecoderShapes,
    FeedForwardShape,
    LayerShape,
    MixtureShape,
    ProjectionShape,
)
from trainrig.parallel.recompute import Kept


@cache
def cut_model(model: DecoderConfig, tensor: int, expert: int) -> DecoderConfig:
    """Return the config of one device's part of `model`, with `tensor` and `expert` parallel ranks.

    The number of active experts per token is unchanged: tokens of this device go to experts
    elsewhere, and tokens of other devices come in their place.
    """
    shape = model.shape
    mixture = model.feedforward
    narrow: dict[str, object] = {
        "heads": shape.heads // tensor,
        # with fewer key heads than devices, each device computes one
        "kv_heads": max(1, shape.kv_heads // tensor),
        "head_channels": shape.head_channels,
        "feedforward_channels": shape.feedforward_channels // tensor,
        "vocabulary": shape.vocabulary // tensor,
    }
    if isinstance(mixture, MixtureOfExperts):
        between = (mixture.expert_channels or shape.feedforward_channels) // tensor
        narrow["feedforward"] = mixture.model_copy(
            update={"experts": mixture.experts // expert, "expert_channels": between}
        )
    return model.model_copy(update=narrow)


@cache
def cut_shapes(model: DecoderConfig, tensor: int, expert: int) -> DecoderShapes:
    """Return the shapes of every matrix of `cut_model`, with the router of the whole model."""
    local = cut_model(model, tensor, expert).shapes
    if expert == 1:
        return local
    layers = tuple(
        _with_router(mine, whole)
        for mine, whole in zip(local.layers, model.shapes.layers, strict=True)
    )
    return replace(local, layers=layers)


def _with_router(mine: LayerShape, whole: LayerShape) -> LayerShape:
    part = mine.feedforward
    of_whole = whole.feedforward
    if isinstance(part, FeedForwardShape) or isinstance(of_whole, FeedForwardShape):
        return mine
    router = replace(part, router=of_whole.router, balance_bias=of_whole.balance_bias)
    assert isinstance(router, MixtureShape)
    return replace(mine, feedforward=router)


FLOAT32 = 4  # bytes of a float32 number


@dataclass(frozen=True)
class LayerAdapters:
    """The LoRA adapters of one layer.

    `targets` are the names, within the layer, of the projections that have an adapter.
    """

    lora: LoRA
    targets: frozenset[str]


def list_layer_adapters(model: DecoderConfig, lora: LoRA | None) -> list[LayerAdapters | None]:
    """Return the adapters of each layer of `model`; None for each layer without LoRA."""
    count = len(model.shapes.layers) + len(model.shapes.further_layers)
    if lora is None:
        return [None] * count
    targets: list[set[str]] = [set() for _ in range(count)]
    for name in lora.choose(model):
        kind, _, rest = name.partition(".")
        number, _, inside = rest.partition(".")
        if kind == "layers":
            targets[int(number)].add(inside)
    return [LayerAdapters(lora, frozenset(names)) for names in targets]


def estimate_kept(
    layer: LayerShape, adapters: LayerAdapters | None, model: DecoderConfig, size: int, split: int
) -> dict[Kept, float]:
    """Return the bytes per token that `layer` keeps for the backward pass, by kind of data.

    `size` is bytes per number of the compute dtype. `split` is the number of ranks that share the
    positions between layers (sequence parallelism).
    """
    return {
        "all": _estimate_all_kept(layer, adapters, model, size, split),
        "products": _estimate_kept_products(layer, adapters, model, size, split),
        "input": size * model.channels / split,
    }


def estimate_keys_and_values(model: DecoderConfig, size: int) -> float:
    """Return the bytes per token of one layer's keys and values, at `size` bytes a number."""
    return 2.0 * size * model.shape.kv_heads * model.shape.head_channels


def _estimate_all_kept(
    layer: LayerShape, adapters: LayerAdapters | None, model: DecoderConfig, size: int, split: int
) -> float:
    """Return the bytes per token that `layer` keeps if nothing is recomputed."""
    norms = (
        layer.attention_norm,
        layer.attention_output_norm,
        layer.feedforward_norm,
        layer.feedforward_output_norm,
    )
    normed = model.channels * sum(norm is not None for norm in norms)
    width = compute_feedforward_width(layer)
    products = _count_product_outputs(layer, model) + width * model.network.kept_between
    products += layer.attention.kept_beside
    in_norms = normed * (6 if size < FLOAT32 else 4)
    stream = (size * (2 * model.channels + normed) + in_norms) / split
    kept = size * products + stream + _estimate_kept_by_mixture(layer, model, size, split)
    if adapters is None:
        return kept
    kept -= FLOAT32 * normed / split  # gains are frozen
    return kept + _estimate_added_by_adapters(layer, adapters, size, split)


def estimate_kept_compiled(layer: LayerShape, model: DecoderConfig, size: int) -> float | None:
    """Return the bytes per token that a compiled `layer` keeps without explicit recomputation.

    torch's compiler recomputes everything but matrix products. It keeps the layer's input, the
    inputs and outputs of products, attention's log-sum-exp and the scales of norms. Returns None
    for kinds of layers where this is not known.
    """
    if isinstance(layer.feedforward, MixtureShape) or layer.attention.added:
        return None
    if layer.attention_output_norm or layer.feedforward_output_norm:
        return None
    shape = model.shape
    normed = sum(norm is not None for norm in (layer.attention_norm, layer.feedforward_norm))
    joined = 0 if isinstance(model.block, ParallelBlock) else 1  # attention's own residual addition
    heads = shape.heads + shape.kv_heads
    normed_heads = layer.attention.query_norm is not None
    of_heads = heads * shape.head_channels * (3 if normed_heads else 2)
    between = compute_feedforward_width(layer) * (3 if _is_gated(layer) else 2)
    numbers = model.channels * (1 + normed + joined) + of_heads + between
    scales = normed + (heads if normed_heads else 0)
    return float(size * numbers + FLOAT32 * (shape.heads + scales))


def _estimate_added_by_adapters(
    layer: LayerShape, adapters: LayerAdapters, size: int, split: int
) -> float:
    """Return the bytes per token that adapters add to what `layer` keeps without them.

    Each adapter keeps `rank` numbers between its two products; with DoRA also the projection's
    output, which is rescaled; with dropout also the dropout mask and its output. A frozen
    projection does not keep its input, so the inputs that no adapter reads are subtracted, except
    those that attention keeps for itself.
    """
    lora = adapters.lora
    found = 0.0
    read = set[str]()
    for name, source, part in list_projections(layer):
        if name not in adapters.targets:
            continue
        found += size * (lora.rank + (part.outputs if lora.dora else 0))
        if lora.dropout:
            found += 2 * size * part.inputs
        else:
            read.add(source)
    for source, width in _list_sources(layer, split).items():
        if source not in read:
            found -= size * width
    return found


def list_projections(layer: LayerShape) -> Iterator[tuple[str, str, ProjectionShape]]:
    """Yield (name, name of its input, shape) of each projection of `layer` that may be adapted."""
    attention = layer.attention
    added = {n: e for n, e in attention.added.items() if isinstance(e, ProjectionShape)}
    for name, part in {
        "query": attention.query,
        "key": attention.key,
        "value": attention.value,
        **added,
    }.items():
        yield f"attention.{name}", "attention", part
    yield "attention.output", "seen", attention.output
    mixture = isinstance(layer.feedforward, MixtureShape)
    dense = (
        layer.feedforward.shared
        if isinstance(layer.feedforward, MixtureShape)
        else layer.feedforward
    )
    if dense is None:
        return
    before = "feedforward.shared" if mixture else "feedforward"
    if dense.gate is not None:
        yield f"{before}.gate", "feedforward", dense.gate
    yield f"{before}.up", "feedforward", dense.up
    yield f"{before}.down", "between", dense.down


def _list_sources(layer: LayerShape, split: int) -> dict[str, float]:
    """Return the numbers per token of inputs kept only for projections, by name of the input."""
    found = {}
    if layer.attention_norm is not None:
        found["attention"] = layer.attention_norm.channels / split
    # experts and router of a mixture read it too
    if isinstance(layer.feedforward, FeedForwardShape):
        if layer.feedforward_norm is not None:
            found["feedforward"] = layer.feedforward_norm.channels / split
        found["between"] = float(layer.feedforward.down.inputs)
    return found


def _estimate_kept_products(
    layer: LayerShape, adapters: LayerAdapters | None, model: DecoderConfig, size: int, split: int
) -> float:
    """Return the bytes per token that `layer` keeps if everything but products is recomputed.

    Kept are the layer's input and the outputs of products. An expert's input is a copy, which is
    recomputed.
    """
    mixture = layer.feedforward
    channels = model.channels
    products = _count_product_outputs(layer, model) + channels * (1 / split + 1)
    if adapters is not None:  # both products of an adapter have an output
        products += sum(
            adapters.lora.rank + part.outputs
            for name, _, part in list_projections(layer)
            if name in adapters.targets
        )
    if not isinstance(mixture, MixtureShape):
        return size * (products + channels)
    products -= mixture.experts.up.active * channels
    products += 0 if mixture.shared is None else channels
    return size * products + FLOAT32 * mixture.router.outputs


def _estimate_kept_by_mixture(
    layer: LayerShape, model: DecoderConfig, size: int, split: int
) -> float:
    """Return the bytes per token that a mixture of experts keeps beyond a dense feed-forward part.

    Each expert has a logit and a score. Each active expert has an index, a position in two orders
    and two weights. The router also reads the input in float32 and as whole rows.
    """
    mixture = layer.feedforward
    if not isinstance(mixture, MixtureShape):
        return 0.0
    experts = mixture.router.outputs
    active = mixture.experts.up.active
    routing = 2 * FLOAT32 * experts + 32 * active + 3 * FLOAT32
    read_beside = size < FLOAT32 and mixture.shared is not None
    whole = FLOAT32 + (size if read_beside else 0)
    ones = 0 if mixture.experts.up_bias is None else 3 * active  # biases are added by products
    gated = 0 if mixture.shared_gate is None else model.channels + 1
    return routing + size * (ones + gated) + model.channels * (whole - size / split)


def _count_product_outputs(layer: LayerShape, model: DecoderConfig) -> int:
    """Return the outputs per token of the products of `layer`, without those added to the residual.

    The inputs and outputs of experts are copies and count as well.
    """
    shape = model.shape
    mixture = layer.feedforward
    # queries, keys, values and the output of attention
    heads = shape.head_channels * 2 * (shape.heads + shape.kv_heads)
    copies = 0
    if isinstance(mixture, MixtureShape):
        copies = 2 * mixture.experts.up.active * shape.channels  # inputs and outputs of the experts
    return (
        heads
        + copies
        + _count_added(layer)
        + compute_feedforward_width(layer) * (2 if _is_gated(layer) else 1)
    )


def _count_added(layer: LayerShape) -> int:
    """Return the outputs per token of the extra projections that the kind of attention adds."""
    added = layer.attention.added.values()
    return sum(
        projection.outputs for projection in added if isinstance(projection, ProjectionShape)
    )


def compute_feedforward_width(layer: LayerShape) -> int:
    """Return the hidden width of the feed-forward part, summed over a token's active experts."""
    part = layer.feedforward
    if isinstance(part, FeedForwardShape):
        return part.up.outputs
    shared = 0 if part.shared is None else part.shared.up.outputs
    return part.experts.up.active * part.experts.up.outputs + shared


def _is_gated(layer: LayerShape) -> bool:
    part = layer.feedforward
    return (part.gate if isinstance(part, FeedForwardShape) else part.experts.gate) is not None
