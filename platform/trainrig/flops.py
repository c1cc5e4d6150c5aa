"""Floating-point operations of a model, counted exactly from its sizes.

One multiply and add are two operations. Counted are matrix products, as is usual (Kaplan et al.
2020, arXiv:2001.08361, table 1): norms, rotations, softmax and gates are left out, less than 1% of
a decoder of a thousand channels. A backward pass takes twice the forward one: each product
becomes two, one for the gradients of either side. What recomputation repeats is no progress and not
counted.

Shapes: T positions, C channels, H query heads, D channels of a head, V entries of the vocabulary.
"""

from dataclasses import dataclass

from trainrig.models.architecture.shapes import CrossLayerShape, count_multiplications
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.encoder_decoder.config import EncoderDecoderConfig

BACKWARD = 2  # of a forward pass
PER_PARAMETER = 6  # 6ND: forward and backward, a multiply and an add each


@dataclass(frozen=True)
class TokenFlops:
    """Operations of one token's forward pass, by where they are made."""

    projections: float  # of attention and feed-forward in all layers, and before the logits
    attention: float  # queries by keys, weights by values
    head: float  # logits; looking up the embedding costs none

    @property
    def forward(self) -> float:
        """All of them."""
        return self.projections + self.attention + self.head

    @property
    def training(self) -> float:
        """With those of the backward pass."""
        return self.forward * (1 + BACKWARD)


def count_token_flops(
    model: DecoderConfig,
    sequence_length: int,
    causal: bool = True,
    predicted: float = 1.0,
    keys_ahead: float = 0.0,
) -> TokenFlops:
    """Of a token of `model`, the mean over a sequence of `sequence_length`.

    `causal`: a query meets only the (T + 1) / 2 keys, on average, that it may see; without, all T,
    as kernels that skip nothing compute it and as PaLM's utilisation counts it (arXiv:2204.02311,
    appendix B). An encoder's query may see all T, or those within a window on either side.
    `predicted`: the share of tokens that logits are made for. `keys_ahead`: keys after it that a
    query of a decoder sees in each layer, on average, as in a prefix. Raises ConfigError while the
    vocabulary is not settled.
    """
    shape = model.shape
    window = model.attention.window
    keys = 0.0
    for layer in range(model.layers):
        local = window is not None and window.is_local(layer)
        size = window.size if window and local else None
        keys += compute_mean_keys(sequence_length, size, causal, model.bidirectional)
        keys += keys_ahead if causal else 0
    logits, shapes = model.outputs * model.logit_channels, model.shapes
    products = count_multiplications((shapes.before_layers, shapes.layers, shapes.after_layers))
    if shapes.head is not None:
        products -= logits
    return TokenFlops(
        projections=2.0 * products,
        attention=4.0 * shape.heads * shape.head_channels * keys,
        head=2.0 * logits * predicted,
    )


def count_encoder_decoder_flops(model: EncoderDecoderConfig, read: int, written: int) -> float:
    """Of training on one row of which the encoder reads `read` tokens and the decoder writes
    `written`, forward and backward; keys and values of cross-attention are made of what is read.

    Raises ConfigError while the vocabulary is not settled.
    """
    shape, layers = model.shape, model.shapes.layers
    encoder, decoder = layers[: model.encoding_layers], layers[model.encoding_layers :]
    products = read * count_multiplications(encoder) + written * count_multiplications(decoder)
    for layer in decoder:
        assert isinstance(layer, CrossLayerShape)
        of_memory = layer.cross_attention.key, layer.cross_attention.value
        products += (read - written) * count_multiplications(of_memory)
    keys = len(encoder) * read**2 + len(decoder) * written * ((written + 1) / 2 + read)
    attention = 4.0 * shape.heads * shape.head_channels * keys
    head = 2.0 * written * model.outputs * shape.channels
    return (2.0 * products + attention + head) * (1 + BACKWARD)


def count_detection_flops(model: DecoderConfig, sequence_length: int, predicted: float) -> float:
    """Of training on a token of replaced-token detection: `model` reads all of it, and so does its
    generator, which makes logits for the share `predicted`. That these are made again to draw of
    them is not counted, as what is recomputed is not."""
    generator = model.generator_model
    assert generator is not None, "a run without one is refused"
    drawn = count_token_flops(generator, sequence_length, predicted=predicted).training
    return drawn + count_token_flops(model, sequence_length).training


def count_further_flops(model: DecoderConfig, sequence_length: int) -> float:
    """Of training on a token by the heads of `model` for the tokens after the next, each of which
    makes logits for one token of a row fewer than the one before."""
    shape, shapes = model.shape, model.shapes
    keys = compute_mean_keys(sequence_length, None, True, model.bidirectional)
    attention = 4.0 * shape.heads * shape.head_channels * keys
    found = 0.0
    for number, layer in enumerate(shapes.further_layers, 1):
        predicted = max(0, sequence_length - number) / sequence_length
        logits = 2.0 * model.outputs * model.logit_channels * predicted
        found += 2.0 * count_multiplications(layer) + attention + logits
    return found * (1 + BACKWARD)


def compute_mean_keys(length: int, window: int | None, causal: bool, around: bool) -> float:
    """How many keys a query meets, the mean over a sequence; `around`: those on either side."""
    if not causal:
        return length
    if around:
        reach = length - 1 if window is None else min((window - 1) // 2, length - 1)
        return 2 * reach + 1 - reach * (reach + 1) / length
    if window is None or window >= length:
        return (length + 1) / 2
    return window * (1 - (window - 1) / (2 * length))


def count_flops_6nd(parameters: float, tokens: float) -> float:
    """Training compute by 6ND (Kaplan et al., section 2.1), which leaves attention out."""
    return PER_PARAMETER * parameters * tokens
