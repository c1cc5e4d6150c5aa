"""Bytes of activations: what layers keep for the backward pass, and what is there for a moment.

Shapes: C channels, H query heads, K key heads, D channels of a head, F between, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainrig.models.architecture.shapes import (
    FeedForwardShape,
    LayerShape,
    MixtureShape,
    ProjectionShape,
)
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.lora.settings import LoRA
from trainrig.parallel.precision import Precision
from trainrig.parallel.recompute import Full, Selective
from trainrig.train.run_file.training import Training

MASTER = 4  # bytes of a float32
BYTES = {"float32": MASTER, "bfloat16": 2, "int8": 1}  # of a number, as `lora.base` says
HEAD_BLOCK = 2**28  # logits that are there at once at most: objectives/chunked_head.py, of GPUs


def find_gathered_width(base: str, precision: Precision) -> int:
    """Bytes of a number of frozen weights in the format `base`, as a layer is handed them: where
    weights are cast when they are gathered, whole numbers stay as they are."""
    if base == "int8" or not precision.casts:
        return BYTES[base]
    return precision.bytes


@dataclass(frozen=True)
class LayerAdapters:
    """The adapters of one layer, by the names of what they are of within it."""

    lora: LoRA
    targets: frozenset[str]


def list_layer_adapters(model: DecoderConfig, lora: LoRA | None) -> list[LayerAdapters | None]:
    """Those of each layer of `model`; None: it is trained whole."""
    if lora is None:
        return [None] * (model.layers + model.further_heads)
    targets: list[set[str]] = [set() for _ in range(model.layers + model.further_heads)]
    for name in lora.choose(model):
        kind, _, rest = name.partition(".")
        number, _, inside = rest.partition(".")
        if kind == "layers":
            targets[int(number)].add(inside)
    return [LayerAdapters(lora, frozenset(each)) for each in targets]


def estimate_at_head(
    model: DecoderConfig,
    compute: int,
    tokens: int,
    places: int | None = None,
    lora: LoRA | None = None,
) -> float:
    """Bytes of logits, the gradients of hidden states, and those of the weight, unless it is frozen
    by `lora`: of a block of all `tokens`; or of so many `places` of them, all at once, whose logits
    are beside their own gradients."""
    entries, channels = model.outputs, model.logit_channels
    of_weight = 0 if is_head_frozen(model, lora) else entries * channels
    if places is not None:
        copies = 2 if model.logit_cap is None else 3
        states = 3 * places * channels + tokens * model.channels
        return float(compute * (copies * places * entries + states + of_weight))
    block = min(tokens * entries, max(HEAD_BLOCK, entries))
    return float(compute * (block + 3 * tokens * channels) + MASTER * of_weight)


def is_head_frozen(model: DecoderConfig, lora: LoRA | None) -> bool:
    """Whether `lora` leaves what logits are made by as it was."""
    if lora is None or model.head != "tokens":
        return False
    return name_head(model) not in lora.choose(model)


def name_head(model: DecoderConfig) -> str:
    """The layer whose weight logits of tokens are made by."""
    return "embedding" if model.shapes.head is None else "head"


def estimate_per_token(
    model: DecoderConfig, training: Training, lora: LoRA | None = None
) -> tuple[float, float]:
    """Bytes a token that all layers together keep for the backward pass, and what there is for a
    moment beside within one of them."""
    shapes = model.shapes
    kept, in_a_layer = estimate_layers_per_token(
        (*shapes.layers, *shapes.further_layers),
        model,
        training,
        adapters=list_layer_adapters(model, lora),
    )
    # Of each further head the stream after its layer, the normed one, and the norm's intermediates.
    size = training.precision.bytes
    of_head = model.channels * (2 * size + (6 if size < MASTER else 4))
    return kept + len(shapes.further_layers) * of_head, in_a_layer


def estimate_layers_per_token(
    layers: Sequence[LayerShape],
    model: DecoderConfig,
    training: Training,
    split: int = 1,
    adapters: Sequence[LayerAdapters | None] = (),
) -> tuple[float, float]:
    """The same of some of its `layers`, where what flows between products is split over `split`
    devices (sequence parallel: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).

    With everything kept: of the attention its input and the normed one, queries, keys, values and
    what was seen, and of each product that its kind adds (a gate) what is made of it and what that
    changes; of the feed-forward part its input and the normed one, gate, up, SiLU of the gate
    and the product; of each norm, which computes in float32, its intermediates. Of a mixture of
    experts, whose router reads whole rows, see `_estimate_kept_by_mixture`. Selective keeps what
    products gave, those that join the stream before they are split, and the layer's input; Full
    the input alone. `adapters`: of each layer, see `_estimate_added_by_adapters`.
    """
    size = training.precision.bytes
    channels = model.channels
    pairs = list(zip(layers, adapters or [None] * len(layers), strict=True))
    kinds = {each: _estimate_all_kept(*each, model, size, split) for each in set(pairs)}
    everything = [kinds[each] for each in pairs]
    without = {each: _estimate_kept_products_alone(*each, model, size, split) for each in kinds}
    selective = [without[each] for each in pairs]
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


def _estimate_all_kept(
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
    products = _count_product_outputs(layer, model) + _compute_feedforward_width(layer) * (
        2 if _has_gate(layer) else 1
    )
    products += _count_added(layer)
    in_norms = normed * (6 if size < MASTER else 4)
    stream = (size * (2 * model.channels + normed) + in_norms) / split
    kept = size * products + stream + _estimate_kept_by_mixture(layer, model, size, split)
    if adapters is None:
        return kept
    kept -= MASTER * normed / split  # gains are frozen
    return kept + _estimate_added_by_adapters(layer, adapters, size, split)


def _estimate_added_by_adapters(
    layer: LayerShape, adapters: LayerAdapters, size: int, split: int
) -> float:
    """Bytes a token that `layer` keeps with adapters beside what it keeps without: of each one the
    `rank` numbers between its two products; with DoRA what the layer gives, which is scaled; with
    dropout what is dropped and what is left. No frozen product keeps what it reads, so what none
    with an adapter reads is not kept, but for what attention keeps for itself."""
    lora, found, read = adapters.lora, 0.0, set[str]()
    for name, source, part in _list_projections(layer):
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


def _list_projections(layer: LayerShape) -> Iterator[tuple[str, str, ProjectionShape]]:
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


def estimate_restored_weight(model: DecoderConfig, training: Training, lora: LoRA | None) -> float:
    """Bytes of the largest frozen weight that is held in other numbers than are computed with, as
    it is cast within its product; with DoRA those of three in float32, whose rows are measured."""
    if lora is None:
        return 0.0
    size = training.precision.bytes
    largest = max(
        (part.outputs * part.inputs for each in set(model.shapes.layers) for *_, part in
         _list_projections(each)),
        default=0,
    )  # fmt: skip
    if lora.dora:
        return float(3 * MASTER * largest)
    return (
        float(size * largest) if find_gathered_width(lora.base, training.precision) != size else 0.0
    )


def estimate_restored_head(model: DecoderConfig, training: Training, lora: LoRA | None) -> float:
    """Bytes of the weight that logits are made by, where it is made of one that is held in other
    numbers, or of one and its adapter: it is kept for the backward pass."""
    if lora is None or model.head != "tokens":
        return 0.0
    size, name = training.precision.bytes, name_head(model)
    table = name == "embedding" and lora.base == "int8"  # tables are in bfloat16 then
    held = find_gathered_width("bfloat16" if table else lora.base, training.precision)
    alike = held == size and is_head_frozen(model, lora)
    return 0.0 if alike else float(size * model.outputs * model.logit_channels)


def _estimate_kept_products_alone(
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
            for name, _, part in _list_projections(layer)
            if name in adapters.targets
        )
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
