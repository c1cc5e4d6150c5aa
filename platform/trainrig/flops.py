"""Floating-point operations (FLOPs) of a model and of training it, counted from its sizes.

A multiply-add is two operations. Only matrix products are counted, as is usual (Kaplan et al. 2020,
arXiv:2001.08361, table 1). Norms, rotary embeddings, softmax and gates are left out: less than 1%
in a decoder with a thousand channels. A backward pass takes twice the operations of the forward
pass: each product becomes two, one for the gradient of each factor. Recomputed activations are not
counted. The operations of an objective follow from the work that it declares for a row.

Shapes: T positions, C channels, H query heads, D channels of a head, V entries of the vocabulary.
"""

from dataclasses import dataclass

from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.models.architecture.shapes import CrossLayerShape, count_multiplications
from trainrig.objectives.objective_settings import ObjectiveSettings, find_parts

BACKWARD = 2  # operations of the backward pass, relative to the forward pass
PER_PARAMETER = 6  # 6ND: a multiply-add in the forward pass, and two in the backward pass


@dataclass(frozen=True)
class TokenFlops:
    """FLOPs of one token's forward pass, by part of the model."""

    projections: float  # attention and feed-forward matrices in all layers, and before the logits
    attention: float  # products of queries and keys, and of attention weights and values
    head: float  # logits; the lookup of an embedding costs nothing

    @property
    def forward(self) -> float:
        """FLOPs of the forward pass."""
        return self.projections + self.attention + self.head

    @property
    def training(self) -> float:
        """FLOPs of the forward and the backward pass."""
        return self.forward * (1 + BACKWARD)


def count_token_flops(
    model: DecoderConfig,
    sequence_length: int,
    causal: bool = True,
    predicted: float = 1.0,
    keys_ahead: float = 0.0,
) -> TokenFlops:
    """Count the FLOPs of one token of `model`, on average over a sequence.

    Raises ConfigError if the size of the vocabulary is not known yet.

    Args:
        model: the model, a decoder or an encoder.
        sequence_length: T, in tokens.
        causal: count only the (T + 1) / 2 keys that a decoder's query attends to on average. False
            counts all T keys, as kernels without skipping compute them and as PaLM counts
            utilisation (arXiv:2204.02311, appendix B). An encoder's query attends to all T keys, or
            to the keys within a window on either side.
        predicted: share of tokens for which logits are computed.
        keys_ahead: mean number of later keys that a decoder's query attends to in each layer, as in
            a prefix.
    """
    keys = 0.0
    for layer in range(model.layers):
        keys += compute_layer_keys(model, layer, sequence_length, causal)
        keys += keys_ahead if causal else 0
    logits = model.outputs * model.logit_channels
    shapes = model.shapes
    products = count_multiplications((shapes.before_layers, shapes.layers, shapes.after_layers))
    if shapes.head is not None:
        products -= logits
    return TokenFlops(
        projections=2.0 * products,
        attention=count_attention_flops(model, keys),
        head=2.0 * logits * predicted,
    )


def count_encoder_decoder_flops(model: EncoderDecoderConfig, read: int, written: int) -> float:
    """Count the training FLOPs of one row of an encoder-decoder, forward and backward.

    The encoder takes `read` tokens and the decoder `written` tokens. Keys and values of
    cross-attention are computed for the encoder's tokens. Raises ConfigError if the size of the
    vocabulary is not known yet.
    """
    layers = model.shapes.layers
    encoder, decoder = layers[: model.encoding_layers], layers[model.encoding_layers :]
    products = read * count_multiplications(encoder) + written * count_multiplications(decoder)
    for layer in decoder:
        assert isinstance(layer, CrossLayerShape)
        of_memory = layer.cross_attention.key, layer.cross_attention.value
        products += (read - written) * count_multiplications(of_memory)
    keys = len(encoder) * read**2 + len(decoder) * written * ((written + 1) / 2 + read)
    attention = count_attention_flops(model, keys)
    head = 2.0 * written * model.outputs * model.channels
    return (2.0 * products + attention + head) * (1 + BACKWARD)


def count_detection_flops(model: DecoderConfig, sequence_length: int, predicted: float) -> float:
    """Count the training FLOPs of one token in replaced-token detection.

    `model` and its generator process every token, and the generator computes logits for the share
    `predicted` of them. The generator's logits are computed again for sampling, which is not
    counted, as with all recomputation.
    """
    generator = model.generator_model
    assert generator is not None, "a run without one is refused"
    drawn = count_token_flops(generator, sequence_length, predicted=predicted).training
    return drawn + count_token_flops(model, sequence_length).training


def count_further_flops(model: DecoderConfig, sequence_length: int) -> float:
    """Count the training FLOPs of one token in the heads for multi-token prediction.

    Each head of `model` computes logits for one token of a row fewer than the head before.
    """
    keys = compute_mean_keys(sequence_length, None, True, model.bidirectional)
    attention = count_attention_flops(model, keys)
    found = 0.0
    for number, layer in enumerate(model.shapes.further_layers, 1):
        predicted = max(0, sequence_length - number) / sequence_length
        logits = 2.0 * model.outputs * model.logit_channels * predicted
        found += 2.0 * count_multiplications(layer) + attention + logits
    return found * (1 + BACKWARD)


def count_layer_flops(model: DecoderConfig) -> tuple[tuple[float, ...], float]:
    """Count the forward FLOPs of a token in each layer of a decoder, and in its head.

    Rows are as long as the model has positions.
    """
    costs = [
        2.0 * count_multiplications(layer)
        + count_attention_flops(model, compute_layer_keys(model, number, model.positions))
        for number, layer in enumerate(model.shapes.layers)
    ]
    return tuple(costs), 2.0 * model.outputs * model.channels


def count_attention_flops(model: DecoderConfig, keys: float, heads: int | None = None) -> float:
    """Count the forward FLOPs of attention of one token of `model` to `keys` keys.

    They are the products of queries and keys, and of attention weights and values. `heads` is the
    number of query heads, by default all of them.
    """
    return 4.0 * (heads or model.shape.heads) * model.shape.head_channels * keys


def compute_layer_keys(model: DecoderConfig, layer: int, length: int, causal: bool = True) -> float:
    """Return the mean number of keys that a query attends to in the layer of that number."""
    window = model.attention.window
    local = window is not None and window.is_local(layer)
    size = window.size if window and local else None
    return compute_mean_keys(length, size, causal, model.bidirectional)


def compute_mean_keys(length: int, window: int | None, causal: bool, both_sides: bool) -> float:
    """Return the mean number of keys that a query attends to in a sequence of `length`.

    `both_sides` says that the query attends to keys on both sides, as in an encoder.
    """
    if not causal:
        return length
    if both_sides:
        reach = length - 1 if window is None else min((window - 1) // 2, length - 1)
        return 2 * reach + 1 - reach * (reach + 1) / length
    if window is None or window >= length:
        return (length + 1) / 2
    return window * (1 - (window - 1) / (2 * length))


def count_flops_6nd(parameters: float, tokens: float) -> float:
    """Count training FLOPs as 6ND (Kaplan et al., section 2.1), which leaves attention out."""
    return PER_PARAMETER * parameters * tokens


def count_position_flops(
    objective: ObjectiveSettings, model: DecoderConfig, length: int, steps: int = 1
) -> float:
    """Return the operations to train `model` on one position of rows of `length`, without padding.

    `steps` is the length of the run. Several objectives count by their shares.
    """
    return sum(
        share * _count_row_flops(part, model, length, steps) / length
        for share, part in find_parts(objective)
    )


def _count_row_flops(
    objective: ObjectiveSettings, model: DecoderConfig, length: int, steps: int
) -> float:
    """Return the operations to train on one row."""
    work = objective.measure_work(length, steps)
    if work.encoded is not None and isinstance(model, EncoderDecoderConfig):
        return count_encoder_decoder_flops(model, work.encoded, work.places)
    if objective.head == "replaced":
        return work.places * count_detection_flops(model, work.places, work.predicted)
    further = count_further_flops(model, length) if objective.further_heads else 0.0
    token = count_token_flops(
        model, work.places, predicted=work.predicted, keys_ahead=work.keys_ahead
    )
    return work.places * (token.training + further)
