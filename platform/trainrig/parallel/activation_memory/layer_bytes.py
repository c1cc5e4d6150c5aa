"""Bytes that one layer keeps for the backward pass, a token.

Shapes: C channels, H query heads, K key heads, D channels of a head, F between.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trainrig.models.architecture.norms import ParallelBlock
from trainrig.models.architecture.shapes import (
    FeedForwardShape,
    LayerShape,
    MixtureShape,
    ProjectionShape,
)
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.lora.settings import LoRA

FLOAT32 = 4  # bytes of a number


@dataclass(frozen=True)
class LayerAdapters:
    """The adapters of one layer, by the names of what they are of within it."""

    lora: LoRA
    targets: frozenset[str]


def list_layer_adapters(model: DecoderConfig, lora: LoRA | None) -> list[LayerAdapters | None]:
    """Those of each layer of `model`; None: it is trained whole."""
    count = len(model.shapes.layers) + len(model.shapes.further_layers)
    if lora is None:
        return [None] * count
    targets: list[set[str]] = [set() for _ in range(count)]
    for name in lora.choose(model):
        kind, _, rest = name.partition(".")
        number, _, inside = rest.partition(".")
        if kind == "layers":
            targets[int(number)].add(inside)
    return [LayerAdapters(lora, frozenset(each)) for each in targets]


def estimate_all_kept(
    layer: LayerShape,
    adapters: LayerAdapters | None,
    model: DecoderConfig,
    size: int,
    split: int,
) -> float:
    """Bytes a token that `layer` keeps if nothing is computed again."""
    norms = (
        layer.attention_norm,
        layer.attention_output_norm,
        layer.feedforward_norm,
        layer.feedforward_output_norm,
    )
    normed = model.channels * sum(each is not None for each in norms)
    products = _count_product_outputs(layer, model) + compute_feedforward_width(layer) * (
        2 if _has_gate(layer) else 1
    )
    products += _count_added(layer)
    in_norms = normed * (6 if size < FLOAT32 else 4)
    stream = (size * (2 * model.channels + normed) + in_norms) / split
    kept = size * products + stream + _estimate_kept_by_mixture(layer, model, size, split)
    if adapters is None:
        return kept
    kept -= FLOAT32 * normed / split  # gains are frozen
    return kept + _estimate_added_by_adapters(layer, adapters, size, split)


def estimate_kept_compiled(layer: LayerShape, model: DecoderConfig, size: int) -> float | None:
    """Bytes a token that `layer` keeps if nothing is asked to be computed again, but torch compiles
    it, which computes again what costs no product: kept are its input, what products read and gave,
    attention's sums of exponentials and the scales of norms. None: of layers of this kind it is not
    known."""
    if isinstance(layer.feedforward, MixtureShape) or layer.attention.added:
        return None
    if layer.attention_output_norm or layer.feedforward_output_norm:
        return None
    shape = model.shape
    normed = sum(each is not None for each in (layer.attention_norm, layer.feedforward_norm))
    joined = 0 if isinstance(model.block, ParallelBlock) else 1  # what attention adds by itself
    heads, normed_heads = shape.heads + shape.kv_heads, layer.attention.query_norm is not None
    of_heads = heads * shape.head_channels * (3 if normed_heads else 2)
    between = compute_feedforward_width(layer) * (3 if _has_gate(layer) else 2)
    numbers = model.channels * (1 + normed + joined) + of_heads + between
    scales = normed + (heads if normed_heads else 0)
    return float(size * numbers + FLOAT32 * (shape.heads + scales))


def _estimate_added_by_adapters(
    layer: LayerShape, adapters: LayerAdapters, size: int, split: int
) -> float:
    """Bytes a token that `layer` keeps with adapters beside what it keeps without: of each one the
    `rank` numbers between its two products; with DoRA what the layer gives, which is scaled; with
    dropout what is dropped and what is left. No frozen product keeps what it reads, so what none
    with an adapter reads is not kept, but for what attention keeps for itself."""
    lora, found, read = adapters.lora, 0.0, set[str]()
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
    """Names of the products of `layer` that may have adapters, and of what each reads."""
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
    """Numbers a token of what products alone keep of what they read."""
    found = {}
    if layer.attention_norm is not None:
        found["attention"] = layer.attention_norm.channels / split
    if isinstance(layer.feedforward, FeedForwardShape):  # experts and their router read it as well
        if layer.feedforward_norm is not None:
            found["feedforward"] = layer.feedforward_norm.channels / split
        found["between"] = float(layer.feedforward.down.inputs)
    return found


def estimate_kept_products(
    layer: LayerShape,
    adapters: LayerAdapters | None,
    model: DecoderConfig,
    size: int,
    split: int,
) -> float:
    """Bytes a token that `layer` keeps if all but products is computed again: its input, and what
    they gave. What an expert read is a copy, which is made again."""
    mixture, channels = layer.feedforward, model.channels
    products = _count_product_outputs(layer, model) + channels * (1 / split + 1)
    if adapters is not None:  # both products of an adapter give something, too
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
    """Bytes a token that a mixture keeps beside what a dense part would: of each expert a logit and
    a score, of each active one its number, its place in two orders and two weights; and the input,
    which a router reads in float32 and as whole rows."""
    mixture = layer.feedforward
    if not isinstance(mixture, MixtureShape):
        return 0.0
    experts, active = mixture.router.outputs, mixture.experts.up.active
    routing = 2 * FLOAT32 * experts + 32 * active + 3 * FLOAT32
    read_beside = size < FLOAT32 and mixture.shared is not None
    whole = FLOAT32 + (size if read_beside else 0)
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
        + compute_feedforward_width(layer) * (2 if _has_gate(layer) else 1)
    )


def _count_added(layer: LayerShape) -> int:
    """Numbers a token that the products give which its kind of attention adds."""
    added = layer.attention.added.values()
    return sum(each.outputs for each in added if isinstance(each, ProjectionShape))


def compute_feedforward_width(layer: LayerShape) -> int:
    """Width of the feed-forward part of `layer`, of all networks that a token goes through."""
    part = layer.feedforward
    if isinstance(part, FeedForwardShape):
        return part.up.outputs
    shared = 0 if part.shared is None else part.shared.up.outputs
    return part.experts.up.active * part.experts.up.outputs + shared


def _has_gate(layer: LayerShape) -> bool:
    part = layer.feedforward
    return (part.gate if isinstance(part, FeedForwardShape) else part.experts.gate) is not None
