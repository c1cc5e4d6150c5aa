"""Decoders of any size for a sweep, so that what changes from one to the next is their size alone.

A size is N, the parameters that are not embeddings: those of the layers and of the norm after them.
The output head counts as an embedding, tied or not: Kaplan et al. 2020 (arXiv:2001.08361, section
2.1) found that so counted all sizes lie on one line, and with a vocabulary that is large beside the
layers nothing else can.

Shapes: C channels, L layers, F channels between.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trainrig.errors import ConfigError
from trainrig.models.architecture.width_transfer import MuP
from trainrig.models.decoder_config import DecoderConfig, count_parameters
from trainrig.models.encoder.config import EncoderConfig
from trainrig.models.encoder_decoder.config import EncoderDecoderConfig

# The sizes of a sweep, and how near to what was asked a ladder model is there: a share of it.
SMALLEST, LARGEST = 30_000, 1_000_000_000
NEARNESS = 0.02
# Below, not even one layer of the narrowest decoder fits.
LEAST_PARAMETERS = 5_000

# Channels for each layer. It matters little (Kaplan et al., section 3.2: a factor of 40 costs 3%),
# so it follows practice: the narrowest that two heads allow at the small end, GPT-3's of 1.3
# billion at the large one (24 layers of 2,048, arXiv:2005.14165, table 2.1), GPT-3's at most.
ASPECT_SMALLEST, ASPECT_LARGEST, ASPECT_MOST = 16.0, 85.0, 128.0
# F / C: SwiGLU's 8/3 (arXiv:2002.05202, section 3), and how far N may take it from there.
WIDENING, WIDENING_LEAST, WIDENING_MOST = 8 / 3, 1.75, 4.0
_HALVINGS = 16  # of a search among sizes: finer than they are apart


def compute_std_by_width(channels: int) -> float:
    """The spread of fresh weights: sqrt(2 / (5 C)), Nguyen and Salazar 2019 (arXiv:1910.05895,
    section 2.2); GPT-2's 0.02 is that of 1,000 channels. With 0.02 narrow models hardly learn in
    the first hundred steps: one of 20,000 parameters came to 6.04 nats in 312, with this to 5.67.
    """
    return round(math.sqrt(2 / (5 * channels)), 4)


@dataclass(frozen=True)
class _Grain:
    """What sizes are multiples of, in decoders of `start` channels or more."""

    start: int
    head_channels: int
    channels: int
    between: int


# A vector of a CPU's registers holds 4 to 16 numbers, a tile of matrix kernels is 64 to 256 wide.
_GRAINS = (
    _Grain(8192, 128, 1024, 256),
    _Grain(2048, 128, 256, 256),
    _Grain(384, 64, 64, 64),
    _Grain(128, 32, 32, 16),
    _Grain(64, 16, 16, 8),
    _Grain(0, 16, 16, 4),
)


@dataclass(frozen=True)
class LadderModel:
    """A decoder, and how many parameters it has: exactly, without its being made."""

    model: DecoderConfig
    parameters: int  # N: of the layers, with the norm after the last
    embedding_parameters: int  # of the embedding, and of the head where it is another tensor

    @property
    def total(self) -> int:
        """All but what is there in training alone, as further heads."""
        return self.parameters + self.embedding_parameters


def build_ladder(
    parameters: Sequence[float],
    vocabulary: int,
    positions: int = 2048,
    tie_embeddings: bool = True,
) -> tuple[LadderModel, ...]:
    """A model for each of `parameters`, in their order.

    Raises ConfigError: see `find_ladder_model`.
    """
    return tuple(
        find_ladder_model(each, vocabulary, positions, tie_embeddings) for each in parameters
    )


def space_sizes(least: float, most: float, count: int) -> tuple[float, ...]:
    """`count` sizes from `least` to `most`, each the same multiple of the one before."""
    if count == 1:
        return (least,)
    ratio = (most / least) ** (1 / (count - 1))
    return tuple(least * ratio**step for step in range(count))


def find_ladder_model(
    parameters: float,
    vocabulary: int,
    positions: int = 2048,
    tie_embeddings: bool = True,
    mup: MuP | None = None,
) -> LadderModel:
    """The decoder of about `parameters` non-embedding parameters.

    Of `vocabulary` entries, for sequences of up to `positions` tokens. From 30k to 1B it has what
    was asked to within 2%; beyond, plans may ask for larger ones. A function of its arguments.
    Raises ConfigError below 5,000.
    """
    if not parameters >= LEAST_PARAMETERS:
        raise ConfigError(
            f"no decoder has {parameters:,.0f} non-embedding parameters; the least: "
            f"{LEAST_PARAMETERS:,}, and laws hold from {SMALLEST:,} on"
        )
    layers, channels, between = min(
        _iterate_candidates(parameters), key=lambda sizes: _measure_strangeness(sizes, parameters)
    )
    model = DecoderConfig(
        layers=layers,
        channels=channels,
        heads=channels // _find_grain(channels).head_channels,
        feedforward_channels=between,
        vocabulary=vocabulary,
        positions=positions,
        tie_embeddings=tie_embeddings,
        initial_std=compute_std_by_width(mup.base_channels if mup else channels),
        mup=mup,
    )
    count = count_parameters(model)
    return LadderModel(model, count.layers, count.embedding + count.head)


def find_ladder_model_of(
    kind: str,
    parameters: float,
    vocabulary: int,
    positions: int = 2048,
    tie_embeddings: bool = True,
    mup: MuP | None = None,
) -> LadderModel:
    """The model of `kind`, Decoder, Encoder or EncoderDecoder, of about `parameters`, counted as a
    decoder's are: all that is neither the embedding nor on the way to logits. An encoder-decoder
    has as many layers on either side. Raises ConfigError as `find_ladder_model` does."""
    plain = find_ladder_model(parameters, vocabulary, positions, tie_embeddings, mup)
    if kind == "Decoder":
        return plain
    made_of: type[DecoderConfig] = EncoderConfig if kind == "Encoder" else EncoderDecoderConfig
    sides = 1 if kind == "Encoder" else 2
    depths, widths = [plain.model.layers], [plain.model.channels]
    if sides == 2:
        depths = list(range(max(1, plain.model.layers // 3), plain.model.layers + 1))
        widths = sorted(
            {width for by in (0.6, 0.8, 1.0) for width in _iterate_widths(by * widths[0])}
        )

    def make(layers: int, channels: int, between: int) -> LadderModel:
        model = made_of(
            layers=layers,
            channels=channels,
            heads=channels // _find_grain(channels).head_channels,
            feedforward_channels=between,
            vocabulary=vocabulary,
            positions=positions,
            tie_embeddings=tie_embeddings,
            initial_std=plain.model.initial_std if mup else compute_std_by_width(channels),
            mup=mup,
        )
        count = count_parameters(model)
        return LadderModel(model, count.layers, count.embedding + count.head)

    def fit_width(layers: int, channels: int) -> LadderModel:
        """With the width between that comes nearest: parameters are linear in it."""
        step = _find_grain(channels).between
        first, second = (make(layers, channels, step * n).parameters for n in (1, 2))
        return make(
            layers, channels, step * max(1, 1 + round((parameters - first) / (second - first)))
        )

    def strangeness(found: LadderModel) -> float:
        model = found.model
        off = abs(math.log(found.parameters / parameters))
        shape = math.log(model.channels / (sides * model.layers) / compute_aspect(parameters)) ** 2
        widening = math.log(model.shape.feedforward_channels / model.channels / WIDENING) ** 2
        return 10 * off + 1_000 * max(0.0, off - NEARNESS / 2) + shape + widening

    return min((fit_width(*sizes) for sizes in itertools.product(depths, widths)), key=strangeness)


def with_further_heads(found: LadderModel, heads: int) -> LadderModel:
    """`found` with `heads` for the tokens after the next. They are no part of its size: what is
    evaluated and used is the model without them."""
    if not heads:
        return found
    return replace(found, model=found.model.model_copy(update={"further_heads": heads}))


def find_ladder_model_by_count(
    parameters: float,
    count: Literal["non-embedding", "total"],
    vocabulary: int,
    positions: int = 2048,
) -> LadderModel:
    """The decoder of about `parameters`, counted as a law counts them.

    Raises ConfigError where `parameters` in all do not hold the embedding of `vocabulary` entries.
    """
    if count == "non-embedding":
        return find_ladder_model(parameters, vocabulary, positions)
    least = find_ladder_model(LEAST_PARAMETERS, vocabulary, positions)
    if parameters < least.total:
        raise ConfigError(
            f"no decoder with a vocabulary of {vocabulary:,} has {parameters:,.0f} parameters in "
            f"all, as this law counts them; the least: {least.total:,}, or lower --vocabulary"
        )
    # More layers' parameters mean more in all, but for steps of the width.
    low, high, best = float(LEAST_PARAMETERS), parameters, least
    for _ in range(_HALVINGS):
        middle = find_ladder_model(math.sqrt(low * high), vocabulary, positions)
        if abs(middle.total - parameters) < abs(best.total - parameters):
            best = middle
        if middle.total < parameters:
            low = math.sqrt(low * high)
        else:
            high = math.sqrt(low * high)
    return best


def compute_aspect(parameters: float) -> float:
    """Channels for each layer that a decoder of so many parameters is given, as near as may be."""
    way = math.log(parameters / SMALLEST) / math.log(LARGEST / SMALLEST)
    wanted: float = ASPECT_SMALLEST * (ASPECT_LARGEST / ASPECT_SMALLEST) ** max(0.0, way)
    return min(ASPECT_MOST, wanted)


def _iterate_candidates(parameters: float) -> Iterator[tuple[int, int, int]]:
    """(L, C, F): for the few widths of each depth that are near, the F that fits best."""
    usual = 4 + 3 * WIDENING  # parameters of a layer over those of one square matrix
    depth = (parameters / (usual * compute_aspect(parameters) ** 2)) ** (1 / 3)
    for layers in range(max(2, int(depth / 2)), int(depth * 2) + 2):
        for channels in sorted(set(_iterate_widths(math.sqrt(parameters / (layers * usual))))):
            multiple = _find_grain(channels).between
            wanted = _compute_between(parameters, layers, channels)
            clamped = min(max(wanted, WIDENING_LEAST * channels), WIDENING_MOST * channels)
            yield layers, channels, max(multiple, round(clamped / multiple) * multiple)


def _iterate_widths(width: float) -> Iterator[int]:
    """Widths around `width` that heads divide."""
    for factor in (0.8, 1.0, 1.25):
        step = _find_grain(width * factor).channels
        below = max(1, int(width * factor / step))
        yield from (below * step, (below + 1) * step)


def _compute_between(parameters: float, layers: int, channels: int) -> float:
    """The F that gives so many layers of C channels exactly `parameters`."""
    rest = (parameters - channels) / layers - 2 * channels - 4 * channels**2
    return rest / (3 * channels)


def _measure_strangeness(sizes: tuple[int, int, int], parameters: float) -> float:
    """How far (L, C, F) are from what was asked (first of all), and from the usual proportions."""
    layers, channels, between = sizes
    found = layers * (4 * channels**2 + 3 * channels * between + 2 * channels) + channels
    off = abs(math.log(found / parameters))
    shape = math.log(channels / layers / compute_aspect(parameters)) ** 2
    widening = math.log(between / channels / WIDENING) ** 2
    return 10 * off + 1_000 * max(0.0, off - NEARNESS / 2) + shape + widening


def _find_grain(channels: float) -> _Grain:
    return next(grain for grain in _GRAINS if channels >= grain.start)
