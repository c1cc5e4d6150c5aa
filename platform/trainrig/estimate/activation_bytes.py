"""Bytes of activations, kept for the backward pass or temporary, and of attention masks.

One mask is made for each micro-batch, [B, 1, T, T]: as numbers in the dtype of the model, which all
layers keep for the backward pass, and as the booleans that they are made of, which layers with
recomputation keep as well. docs/attention.md says which kernels take one. The masks of
encoder-decoders, whose biases differ by head, are not counted.

Shapes: C channels, H query heads, K key heads, D channels of a head, F hidden channels of the
feed-forward network, V vocabulary entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainrig.models.architecture.attention_settings import TOGETHER
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.models.architecture.layer_settings import GATED
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.models.architecture.shapes import LayerShape
from trainrig.models.kernels.kernel_choice import CPU_CARD, USUAL_GPU
from trainrig.objectives.objective_settings import ObjectiveSettings, find_parts
from trainrig.parallel import layer_bytes
from trainrig.parallel.activation_budget import Room, describe_kept, plan_kept
from trainrig.parallel.precision import Precision
from trainrig.parallel.recompute import Budget, Kept, choose_kept
from trainrig.train.run_file.training_settings import Training

MASTER = layer_bytes.FLOAT32
# Bytes of a number, by its format in `lora.base`.
BYTES = {"float32": MASTER, "bfloat16": 2, "int8": 1}
LAYERS_BACK = 2  # number of layers on the device at a time with `offload.activations`
HEAD_BLOCK = 2**28  # most logits at once on a GPU (objectives/chunked_head.py)


def find_gathered_width(base: str, precision: Precision) -> int:
    """Return the bytes of a number of frozen weights in the format `base`, as a layer gets them.

    Where weights are cast when they are gathered, int8 numbers stay int8.
    """
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
    """Return the bytes of logits, of gradients of hidden states, and of the head weight's gradient.

    Logits of all `tokens` are made in blocks. Logits of a given number of `places` are made all at
    once, and are held together with their gradients. There is no gradient of a weight that `lora`
    freezes. `compute` is the bytes of a number.
    """
    entries = model.outputs
    channels = model.logit_channels
    of_weight = 0 if is_head_frozen(model, lora) else entries * channels
    if places is not None:
        copies = 2 if model.logit_cap is None else 3
        states = 3 * places * channels + tokens * model.channels
        return float(compute * (copies * places * entries + states + of_weight))
    block = min(tokens * entries, max(HEAD_BLOCK, entries))
    return float(compute * (block + 3 * tokens * channels) + MASTER * of_weight)


def is_head_frozen(model: DecoderConfig, lora: LoRA | None) -> bool:
    """Return whether `lora` leaves the head's weight frozen, without an adapter."""
    if lora is None or model.head != "tokens":
        return False
    return name_head(model) not in lora.choose(model)


def name_head(model: DecoderConfig) -> str:
    """Return the name of the layer whose weight gives the token logits."""
    return "embedding" if model.shapes.head is None else "head"


def find_kept(
    model: DecoderConfig, training: Training, tokens: int, lora: LoRA | None = None, rank: int = 0
) -> tuple[Kept, ...] | None:
    """Return what each layer of pipeline rank `rank` keeps under an activation memory budget.

    `tokens` is the size of a micro-batch. None if the run file sets no budget.
    """
    settings = training.recompute
    if not isinstance(settings, Budget):
        return None
    room = Room(settings, training.parallel, training.precision, tokens, lora)
    return plan_kept(model, room, rank)


def describe_budget(
    model: DecoderConfig, training: Training, tokens: int, lora: LoRA | None = None
) -> dict[str, str]:
    """Return how many layers keep what under the budget, for reports; {} without a budget."""
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
    """Return the bytes per token that all layers keep, and the temporary bytes within one layer.

    `kept` comes from `find_kept`.
    """
    shapes = model.shapes
    found, in_a_layer = estimate_layers_per_token(
        (*shapes.layers, *shapes.further_layers),
        model,
        training,
        adapters=layer_bytes.list_layer_adapters(model, lora),
        what=kept,
    )
    # For each further head: the residual stream after its layer, the normalised one, and the norm's
    # intermediate values.
    size = training.precision.bytes
    of_head = model.channels * (2 * size + (6 if size < MASTER else 4))
    return found + len(shapes.further_layers) * of_head, in_a_layer


def estimate_layers_per_token(
    layers: Sequence[LayerShape],
    model: DecoderConfig,
    training: Training,
    split: int = 1,
    adapters: Sequence[layer_bytes.LayerAdapters | None] = (),
    what: Sequence[Kept] | None = None,
) -> tuple[float, float]:
    """Return the bytes per token that `layers` keep, and the temporary bytes within one layer.

    `split` is the number of devices that divide the residual stream between products (sequence
    parallel: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).

    With everything kept, attention keeps its input, the normalised input, queries, keys, values,
    its output, and for each added product (a gate) its result and what it changes. The feed-forward
    network keeps its input, the normalised input, gate, up, SiLU of the gate, and their product.
    Norms, which compute in float32, keep their intermediate values. layer_bytes.py describes a
    mixture of experts, whose router reads whole rows. Selective recomputation keeps results of
    products (those that join the residual stream before they are split) and the layer's input; full
    recomputation keeps the input only. Compiled layers keep less (`estimate_kept_compiled`). `what`
    says what each layer keeps, instead of `training.recompute`. `adapters` has the adapters of each
    layer (layer_bytes.py).
    """
    size = training.precision.bytes
    pairs = list(zip(layers, adapters or [None] * len(layers), strict=True))
    kept_of = {pair: layer_bytes.estimate_kept(*pair, model, size, split) for pair in set(pairs)}
    again = training.recompute
    if what is None:
        what = choose_kept(len(pairs), None if isinstance(again, Budget) else again)
    total = 0.0
    largest = 0.0
    computed_again = 0.0
    for pair, keeps in zip(pairs, what, strict=True):
        everything = kept_of[pair]["all"]
        if keeps == "all" and training.compile and pair[1] is None and split == 1:
            everything = layer_bytes.estimate_kept_compiled(pair[0], model, size) or everything
        of_layer = everything if keeps == "all" else kept_of[pair][keeps]
        total = total + of_layer
        largest = max(largest, of_layer)
        beside = 0.0 if keeps == "input" else of_layer
        computed_again = max(computed_again, 0.0 if keeps == "all" else everything - beside)
    if training.offload.activations:
        total = min(total, LAYERS_BACK * largest)
    between = max(layer_bytes.compute_feedforward_width(layer) for layer in layers)
    in_a_layer = size * (2 * between + model.channels / split) + computed_again
    return total, float(in_a_layer)


def estimate_restored_weight(model: DecoderConfig, training: Training, lora: LoRA | None) -> float:
    """Return the bytes of the largest frozen weight while it is cast inside its product.

    0 if its stored format is the one that is computed in. With DoRA, three float32 copies are
    counted, whose row lengths are measured.
    """
    if lora is None:
        return 0.0
    size = training.precision.bytes
    largest = max(
        (part.outputs * part.inputs for layer in set(model.shapes.layers) for *_, part in
         layer_bytes.list_projections(layer)),
        default=0,
    )  # fmt: skip
    if lora.dora:
        return float(3 * MASTER * largest)
    return (
        float(size * largest) if find_gathered_width(lora.base, training.precision) != size else 0.0
    )


def estimate_restored_head(model: DecoderConfig, training: Training, lora: LoRA | None) -> float:
    """Return the bytes of a head's weight that is cast or combined with an adapter.

    It is kept for the backward pass. 0 if the head uses its stored weight directly.
    """
    if lora is None or model.head != "tokens":
        return 0.0
    size = training.precision.bytes
    name = name_head(model)
    table = name == "embedding" and lora.base == "int8"  # tables are bfloat16 then
    held = find_gathered_width("bfloat16" if table else lora.base, training.precision)
    alike = held == size and is_head_frozen(model, lora)
    return 0.0 if alike else float(size * model.outputs * model.logit_channels)


def estimate_reading(
    model: DecoderConfig, training: Training, tokens: int, places: int, copies: int = 1
) -> float:
    """Return the most bytes at once in a forward pass without a backward pass over `tokens`.

    That is within a layer, or for `copies` of the logits of `places`.
    """
    size = training.precision.bytes
    shape = model.shape
    between = shape.feedforward_channels * (3 if isinstance(model.network, GATED) else 2)
    in_a_layer = size * (between + 3 * shape.channels) * tokens
    states = size * (shape.channels * tokens + 2 * model.logit_channels * places)
    return float(max(in_a_layer, states + size * copies * places * model.outputs))


@dataclass(frozen=True)
class RowMasks:
    """Kinds of masks that rows need, and whether a CPU computes them."""

    documents: bool = False
    marks: bool = False  # rows have prefixes or branches
    on_cpu: bool = False

    @classmethod
    def of(cls, objective: ObjectiveSettings, by_document: bool, on_cpu: bool) -> "RowMasks":
        """Return the masks of the rows that `objective` makes.

        `by_document` says that tokens attend only to their own document.
        """
        marks = any(part.marks_prefixes for _, part in find_parts(objective))
        return cls(by_document, marks, on_cpu)

    def count_kept(
        self, model: DecoderConfig, training: Training, rows: float, length: int
    ) -> float:
        """Return the bytes of masks on one device for a micro-batch of `rows`.

        The device computes the rows, or shares them with other ranks.
        """
        context = training.parallel.context
        size = training.precision.bytes
        if isinstance(model, EncoderDecoderConfig) or not model.takes_mask(length):
            return 0.0
        pairs = rows * length**2
        card = CPU_CARD if self.on_cpu else USUAL_GPU
        tells_apart = training.choose_attention(model, card).kernel is not None
        # Two chunks of a row for each rank, each with all positions before its end.
        if context is not None:
            if context.keys != "gather" or tells_apart:
                return 0.0
            pairs *= (2 * context.ranks + 1) / (4 * context.ranks**2)
        elif not self.marks:
            by_document = self.on_cpu and length > TOGETHER // size
            if not self.documents or tells_apart or by_document:
                return 0.0
        made_of = 0 if training.recompute is None else 1
        both = 1 if model.generator_model is None else 2  # the generator's mask is kept as well
        return float(both * pairs * (size + made_of))


NO_MASKS = RowMasks()
