"""Decoders of any size for a sweep, which differ in size alone and keep the usual proportions.

A model's size is N, the non-embedding parameters: those of the layers and of the norm after them.
The output head counts as an embedding, whether it is tied or not. Kaplan et al. 2020
(arXiv:2001.08361, section 2.1) found that with this count all sizes lie on one line, and with a
vocabulary that is large relative to the layers no other count can.

Shapes: C channels, L layers, F feedforward channels.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig, count_parameters
from trainrig.models.architecture.encoder_configs import EncoderConfig, EncoderDecoderConfig
from trainrig.models.architecture.initialisation import MuP

# Range of sizes of a sweep, and the relative distance from a requested size that is allowed there.
SMALLEST = 30_000
LARGEST = 1_000_000_000
NEARNESS = 0.02
# Below this, not even one layer of the narrowest decoder fits.
LEAST_PARAMETERS = 5_000

# Channels per layer. The ratio matters little (Kaplan et al., section 3.2: a factor of 40 costs
# 3%), so it follows practice. At the small end it is the narrowest that two heads allow. At the
# large end it matches GPT-3 with 1.3 billion parameters (24 layers of 2,048 channels,
# arXiv:2005.14165, table 2.1). The limit is the ratio in the largest GPT-3.
ASPECT_SMALLEST = 16.0
ASPECT_LARGEST = 85.0
ASPECT_MOST = 128.0
# F / C: SwiGLU's 8/3 (arXiv:2002.05202, section 3), and its limits when F is adjusted to match N.
WIDENING = 8 / 3
WIDENING_LEAST = 1.75
WIDENING_MOST = 4.0
_HALVINGS = 16  # steps of a bisection over sizes, finer than the distance between sizes


def compute_std_by_width(channels: int) -> float:
    """Compute the standard deviation of initial weights, sqrt(2 / (5 C)), for C `channels`.

    From Nguyen and Salazar 2019 (arXiv:1910.05895, section 2.2). GPT-2's 0.02 is the value for
    1,000 channels. With 0.02, narrow models hardly learn in the first hundred steps: a model of
    20,000 parameters reached 6.04 nats in 312 steps, and 5.67 with this formula.
    """
    return round(math.sqrt(2 / (5 * channels)), 4)


@dataclass(frozen=True)
class _Grain:
    """Multiples that sizes are rounded to, in decoders with at least `start` channels."""

    start: int
    head_channels: int
    channels: int
    between: int


# A CPU's vector register holds 4 to 16 numbers; a tile of a GPU's matrix kernels is 64 to 256 wide.
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
    """Configuration of a decoder, with its exact numbers of parameters.

    They are computed without building the model.
    """

    model: DecoderConfig
    parameters: int  # N: parameters of the layers and of the final norm
    # Parameters of the embedding, and of the output head if it is not tied.
    embedding_parameters: int

    @property
    def total(self) -> int:
        """Number of parameters, without those used in training alone, such as further heads."""
        return self.parameters + self.embedding_parameters


def find_ladder_model(
    parameters: float,
    vocabulary: int,
    positions: int = 2048,
    tie_embeddings: bool = True,
    mup: MuP | None = None,
) -> LadderModel:
    """Find the decoder with about `parameters` non-embedding parameters.

    The result depends on the arguments only. From 30,000 to 1 billion its size is within 2% of
    `parameters`. Larger sizes, which plans may ask for, can deviate more. `positions` is the
    longest sequence in tokens. Raises ConfigError below 5,000 parameters.
    """
    if not parameters >= LEAST_PARAMETERS:
        raise ConfigError(
            f"no decoder has {parameters:,.0f} non-embedding parameters; the least: "
            f"{LEAST_PARAMETERS:,}, and laws are valid from {SMALLEST:,}"
        )
    layers, channels, between = min(
        _iterate_candidates(parameters), key=lambda sizes: _measure_misfit(sizes, parameters)
    )
    return _build_model(
        DecoderConfig,
        layers,
        channels,
        between,
        vocabulary=vocabulary,
        positions=positions,
        tie_embeddings=tie_embeddings,
        mup=mup,
    )


def _build_model(
    made_of: type[DecoderConfig],
    layers: int,
    channels: int,
    between: int,
    *,
    vocabulary: int,
    positions: int,
    tie_embeddings: bool,
    mup: MuP | None,
) -> LadderModel:
    """Build the model of some L, C and F, as usual for its width in all else."""
    model = made_of(
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
    """Find the model of `kind` with about `parameters` non-embedding parameters.

    `kind` is Decoder, Encoder or EncoderDecoder. N excludes embeddings and everything on the way to
    the logits, as for decoders. An encoder-decoder has equally many layers on both sides. Raises
    ConfigError as `find_ladder_model` does.
    """
    plain = find_ladder_model(parameters, vocabulary, positions, tie_embeddings, mup)
    if kind == "Decoder":
        return plain
    made_of: type[DecoderConfig] = EncoderConfig if kind == "Encoder" else EncoderDecoderConfig
    sides = 1 if kind == "Encoder" else 2
    depths = [plain.model.layers]
    widths = [plain.model.channels]
    if sides == 2:
        depths = list(range(max(1, plain.model.layers // 3), plain.model.layers + 1))
        widths = sorted(
            {width for by in (0.6, 0.8, 1.0) for width in _iterate_widths(by * widths[0])}
        )

    make = functools.partial(
        _build_model,
        made_of,
        vocabulary=vocabulary,
        positions=positions,
        tie_embeddings=tie_embeddings,
        mup=mup,
    )

    def fit_width(layers: int, channels: int) -> LadderModel:
        """Build the model with the feedforward width whose size is nearest; N is linear in it."""
        step = _find_grain(channels).between
        first, second = (make(layers, channels, step * n).parameters for n in (1, 2))
        return make(
            layers, channels, step * max(1, 1 + round((parameters - first) / (second - first)))
        )

    def measure_misfit(found: LadderModel) -> float:
        model = found.model
        sizes = sides * model.layers, model.channels, model.shape.feedforward_channels
        return _measure_misfit(sizes, parameters, found.parameters)

    return min(
        (fit_width(*sizes) for sizes in itertools.product(depths, widths)), key=measure_misfit
    )


def with_further_heads(found: LadderModel, heads: int) -> LadderModel:
    """Return `found` with `heads` extra heads that predict the tokens after the next.

    They do not count in its size, because models are evaluated and used without them.
    """
    if not heads:
        return found
    return replace(found, model=found.model.model_copy(update={"further_heads": heads}))


def find_ladder_model_by_count(
    parameters: float,
    count: Literal["non-embedding", "total"],
    vocabulary: int,
    positions: int = 2048,
) -> LadderModel:
    """Find the decoder with about `parameters` parameters, counted as a law counts them.

    Raises ConfigError if a total of `parameters` is too small for the embedding of the vocabulary.
    """
    if count == "non-embedding":
        return find_ladder_model(parameters, vocabulary, positions)
    least = find_ladder_model(LEAST_PARAMETERS, vocabulary, positions)
    if parameters < least.total:
        raise ConfigError(
            f"no decoder with a vocabulary of {vocabulary:,} has {parameters:,.0f} parameters in "
            f"total, as this law counts them; ask for at least {least.total:,}, or lower "
            "`vocabulary`"
        )
    # Bisect: the total grows with the layers' parameters, apart from jumps of the width.
    low = float(LEAST_PARAMETERS)
    high = parameters
    best = least
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
    """Compute the target ratio of channels to layers for a decoder of `parameters` parameters."""
    way = math.log(parameters / SMALLEST) / math.log(LARGEST / SMALLEST)
    wanted: float = ASPECT_SMALLEST * (ASPECT_LARGEST / ASPECT_SMALLEST) ** max(0.0, way)
    return min(ASPECT_MOST, wanted)


def _iterate_candidates(parameters: float) -> Iterator[tuple[int, int, int]]:
    """Yield (L, C, F) for several depths and the few nearest widths of each, with the best F."""
    usual = 4 + 3 * WIDENING  # parameters of a layer, in units of one square matrix
    depth = (parameters / (usual * compute_aspect(parameters) ** 2)) ** (1 / 3)
    for layers in range(max(2, int(depth / 2)), int(depth * 2) + 2):
        for channels in sorted(set(_iterate_widths(math.sqrt(parameters / (layers * usual))))):
            multiple = _find_grain(channels).between
            wanted = _compute_between(parameters, layers, channels)
            clamped = min(max(wanted, WIDENING_LEAST * channels), WIDENING_MOST * channels)
            yield layers, channels, max(multiple, round(clamped / multiple) * multiple)


def _iterate_widths(width: float) -> Iterator[int]:
    """Yield widths near `width` that the heads divide evenly."""
    for factor in (0.8, 1.0, 1.25):
        step = _find_grain(width * factor).channels
        below = max(1, int(width * factor / step))
        yield from (below * step, (below + 1) * step)


def _compute_between(parameters: float, layers: int, channels: int) -> float:
    """Compute the F for which `layers` layers of `channels` channels have exactly `parameters`."""
    rest = (parameters - channels) / layers - 2 * channels - 4 * channels**2
    return rest / (3 * channels)


def _measure_misfit(
    sizes: tuple[int, int, int], parameters: float, found: int | None = None
) -> float:
    """Measure the distance of (L, C, F) from `parameters`, and from the usual proportions.

    `found` is the model's own number of parameters, by default counted as for a decoder. The
    distance from `parameters` has by far the greatest weight.
    """
    layers, channels, between = sizes
    if found is None:
        found = layers * (4 * channels**2 + 3 * channels * between + 2 * channels) + channels
    off = abs(math.log(found / parameters))
    shape = math.log(channels / layers / compute_aspect(parameters)) ** 2
    widening = math.log(between / channels / WIDENING) ** 2
    return 10 * off + 1_000 * max(0.0, off - NEARNESS / 2) + shape + widening


def _find_grain(channels: float) -> _Grain:
    return next(grain for grain in _GRAINS if channels >= grain.start)
