"""Bytes of activations: what layers keep for the backward pass, and what is there for a moment.

Shapes: C channels, H query heads, K key heads, D channels of a head, F between, V vocabulary.
"""

from collections.abc import Sequence

from trainrig.models.architecture.shapes import LayerShape
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.lora.settings import LoRA
from trainrig.parallel.activation_memory.budget import Room, describe_kept, plan_kept
from trainrig.parallel.activation_memory.layer_bytes import (
    LayerAdapters,
    compute_feedforward_width,
    estimate_all_kept,
    estimate_kept_compiled,
    estimate_kept_products,
    list_layer_adapters,
    list_projections,
)
from trainrig.parallel.activation_memory.recompute import Budget, Kept, choose_kept
from trainrig.parallel.precision import Precision
from trainrig.train.run_file.training import Training

MASTER = 4  # bytes of a float32
BYTES = {"float32": MASTER, "bfloat16": 2, "int8": 1}  # of a number, as `lora.base` says
LAYERS_BACK = 2  # on the device at a time, of what `offload.activations` keeps on the host
HEAD_BLOCK = 2**28  # logits that are there at once at most: objectives/chunked_head.py, of GPUs


def find_gathered_width(base: str, precision: Precision) -> int:
    """Bytes of a number of frozen weights in the format `base`, as a layer is handed them: where
    weights are cast when they are gathered, whole numbers stay as they are."""
    if base == "int8" or not precision.casts:
        return BYTES[base]
    return precision.bytes


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


def find_kept(
    model: DecoderConfig, training: Training, tokens: int, lora: LoRA | None = None, rank: int = 0
) -> tuple[Kept, ...] | None:
    """What each layer keeps, of those of `rank` of a pipeline, where a budget says so for
    micro-batches of so many `tokens`; None: there is no budget."""
    settings = training.recompute
    if not isinstance(settings, Budget):
        return None
    room = Room(settings, training.parallel, training.precision, tokens, lora)
    return plan_kept(model, room, rank)


def describe_budget(
    model: DecoderConfig, training: Training, tokens: int, lora: LoRA | None = None
) -> dict[str, str]:
    """How many layers keep what, where a budget says so; {} where there is none."""
    found = [
        describe_kept(kept)
        for rank in range(training.parallel.pipeline_ranks)
        if (kept := find_kept(model, training, tokens, lora, rank)) is not None
    ]
    return {"layers_that_keep": "; ".join(dict.fromkeys(found))} if found else {}


def estimate_per_token(
    model: DecoderConfig,
    training: Training,
    lora: LoRA | None = None,
    kept: Sequence[Kept] | None = None,
) -> tuple[float, float]:
    """Bytes a token that all layers together keep for the backward pass, and what there is for a
    moment beside within one of them. `kept`: see `find_kept`."""
    shapes = model.shapes
    found, in_a_layer = estimate_layers_per_token(
        (*shapes.layers, *shapes.further_layers),
        model,
        training,
        adapters=list_layer_adapters(model, lora),
        what=kept,
    )
    # Of each further head the stream after its layer, the normed one, and the norm's intermediates.
    size = training.precision.bytes
    of_head = model.channels * (2 * size + (6 if size < MASTER else 4))
    return found + len(shapes.further_layers) * of_head, in_a_layer


def estimate_layers_per_token(
    layers: Sequence[LayerShape],
    model: DecoderConfig,
    training: Training,
    split: int = 1,
    adapters: Sequence[LayerAdapters | None] = (),
    what: Sequence[Kept] | None = None,
) -> tuple[float, float]:
    """The same of some of its `layers`, where what flows between products is split over `split`
    devices (sequence parallel: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).

    With everything kept: of the attention its input and the normed one, queries, keys, values and
    what was seen, and of each product that its kind adds (a gate) what is made of it and what that
    changes; of the feed-forward part its input and the normed one, gate, up, SiLU of the gate
    and the product; of each norm, which computes in float32, its intermediates. Of a mixture of
    experts, whose router reads whole rows, see layer_bytes.py. Selective keeps what
    products gave, those that join the stream before they are split, and the layer's input; Full
    the input alone. Compiled layers keep less: see `estimate_kept_compiled`. `what`: each keeps, in
    the place of `training.recompute`. `adapters`: of each, see layer_bytes.py.
    """
    size = training.precision.bytes
    channels = model.channels
    pairs = list(zip(layers, adapters or [None] * len(layers), strict=True))
    all_of = {each: estimate_all_kept(*each, model, size, split) for each in set(pairs)}
    products_of = {each: estimate_kept_products(*each, model, size, split) for each in all_of}
    again = training.recompute
    if what is None:
        what = choose_kept(len(pairs), None if isinstance(again, Budget) else again)
    total, largest, computed_again = 0.0, 0.0, 0.0
    for each, keeps in zip(pairs, what, strict=True):
        everything = all_of[each]
        if keeps == "all" and training.compile and each[1] is None and split == 1:
            everything = estimate_kept_compiled(each[0], model, size) or everything
        of_layer = {
            "all": everything,
            "products": products_of[each],
            "input": size * channels / split,
        }[keeps]
        total, largest = total + of_layer, max(largest, of_layer)
        beside = 0.0 if keeps == "input" else of_layer
        computed_again = max(computed_again, 0.0 if keeps == "all" else everything - beside)
    if training.offload.activations:
        total = min(total, LAYERS_BACK * largest)
    between = max(compute_feedforward_width(layer) for layer in layers)
    in_a_layer = size * (2 * between + channels / split) + computed_again
    return total, float(in_a_layer)


def estimate_restored_weight(model: DecoderConfig, training: Training, lora: LoRA | None) -> float:
    """Bytes of the largest frozen weight that is held in other numbers than are computed with, as
    it is cast within its product; with DoRA those of three in float32, whose rows are measured."""
    if lora is None:
        return 0.0
    size = training.precision.bytes
    largest = max(
        (part.outputs * part.inputs for each in set(model.shapes.layers) for *_, part in
         list_projections(each)),
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
