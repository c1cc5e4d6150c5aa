"""The settings of a decoder, and what follows from them alone: no torch is needed to know it."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from trainrig.config import Settings, suggest_choice
from trainrig.errors import ConfigError
from trainrig.models.architecture.attention import (
    AttentionSettings,
    Biases,
    SlidingWindow,
    hides_by_distance,
)
from trainrig.models.architecture.attention_kinds import AttentionKind
from trainrig.models.architecture.feedforward import (
    GATED,
    FeedForward,
    MixtureOfExperts,
    Network,
    SwiGLU,
)
from trainrig.models.architecture.initialisation import GPT2Init, Initialisation
from trainrig.models.architecture.norms import (
    Block,
    LayerNorm,
    Normalisation,
    OutputNorm,
    ParallelBlock,
    PostNorm,
    PreNorm,
    RMSNorm,
    SandwichNorm,
)
from trainrig.models.architecture.positions import Alibi, LearnedPositions, PositionEmbedding, Rope
from trainrig.models.architecture.presets import PRESETS, with_preset
from trainrig.models.architecture.shapes import (
    AttentionShape,
    DecoderShapes,
    ExpertsShape,
    FeedForwardShape,
    LayerShape,
    MixtureShape,
    NormShape,
    ProjectionShape,
    StackShape,
    TableShape,
    VectorShape,
    count,
    count_idle,
    list_named_sizes,
)
from trainrig.models.architecture.width_transfer import MuP

Head = Literal["tokens", "score", "classes", "spans", "replaced"]

# Matrix kernels work in tiles of up to 64 rows; a dim that does not fill its last one wastes it.
ALIGNMENT = 64


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder with nothing left to derive."""

    vocabulary: int
    layers: int
    channels: int
    heads: int
    kv_heads: int
    head_channels: int
    feedforward_channels: int


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of a model by where they are. A tied head is the embedding: it counts 0."""

    embedding: int  # of tokens, and of positions and segments where they are learnt
    layers: int  # with the norm after the last of them
    head: int
    idle: int = 0  # of experts that are not chosen for a token; the others count them too
    generator: int = 0  # of a model that is trained with it and shares its embedding
    further_heads: int = 0  # of heads for the tokens after the next

    @property
    def active(self) -> int:
        """All that one token meets."""
        return self.total - self.idle

    @property
    def total(self) -> int:
        """All that an optimizer sees."""
        in_training = self.generator + self.further_heads
        return self.embedding + self.layers + self.head + in_training


def _let_a_preset_stand_for_sizes(schema: dict[str, Any]) -> None:
    sizes = schema.pop("required", [])
    schema["anyOf"] = [{"required": ["preset"]}, {"required": sizes}]
    if schema["properties"]["kind"]["const"] != "Decoder":  # which a table without a kind is
        schema["required"] = ["kind"]


class DecoderConfig(Settings):
    """The settings of a decoder; a size that is left out follows from the others. Without any
    other, it is in the manner of Llama (Touvron et al. 2023, arXiv:2302.13971)."""

    model_config = ConfigDict(json_schema_extra=_let_a_preset_stand_for_sizes)

    bidirectional: ClassVar[bool] = False  # whether tokens also see those after them
    biased_when_tied: ClassVar[bool] = False  # whether a tied head may have a bias

    kind: Literal["Decoder"] = "Decoder"
    # Known model to begin from (docs/models.md lists them); other keys of this table change it. In
    # a resolved run file its keys are written out instead.
    preset: str | None = None
    layers: int = Field(ge=1)  # number of layers
    channels: int = Field(ge=1)  # width of the residual stream
    heads: int = Field(ge=1)  # attention heads
    # Heads of keys and values; None: as many as `heads`.
    kv_heads: int | None = Field(default=None, ge=1)
    head_channels: int | None = Field(default=None, ge=1)  # width of a head; None: channels / heads
    # Width of the feed-forward network; None: 8/3 of channels, up to a multiple of 64, which makes
    # SwiGLU's three matrices as large as the two of a network of 4 times the channels
    # (arXiv:2002.05202, section 3); 4 times the channels where nothing is gated.
    feedforward_channels: int | None = Field(default=None, ge=1)
    # Entries of the embedding; None: the tokenizer's, rounded up to a multiple of 64.
    vocabulary: int | None = Field(default=None, ge=1)
    positions: int = Field(default=2048, ge=1)  # length of the longest sequence, in tokens
    position_embedding: PositionEmbedding = Rope()  # how the model knows the order of tokens
    attention: AttentionKind = AttentionSettings()  # what attention has beside its heads
    feedforward: FeedForward = SwiGLU()  # what a layer does to each token by itself
    norm: Normalisation = RMSNorm()  # how activations are kept at one scale
    block: Block = PreNorm()  # where in a layer norms are, and whether its parts are parallel
    biases: Biases = Biases()  # which products have a vector added
    # What the head makes of each place: logits of the next token, or one score, as reward models
    # have; of a whole text a logit of each class, or of each place two, of a span's first and last
    # token, or one, of whether its token was replaced. All but the first are neither tied nor
    # capped; `posttrain` makes them, but for the last.
    head: Head = "tokens"
    labels: tuple[str, ...] = ()  # names of the classes, in the order of the head's outputs
    # Heads in training beside that of the next token, for the tokens after it: each is a layer of
    # its own before the norm and the head that all share (Gloeckle et al. 2024, arXiv:2404.19737).
    further_heads: int = Field(default=0, ge=0)
    tie_embeddings: bool = True  # whether the output head uses the embedding's weights
    # Factor on the embedding; Gemma's is sqrt(channels).
    embedding_multiplier: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Factor on what each part of a layer adds to the stream.
    residual_multiplier: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    logit_multiplier: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # factor on the logits
    # Logits x become cap * tanh(x / cap): Gemma 2's (arXiv:2408.00118); None: as they are.
    logit_cap: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    initialisation: Initialisation = GPT2Init()  # how large fresh weights are
    # Standard deviation of fresh weights; GPT-2's (Radford et al. 2019).
    initial_std: float = Field(default=0.02, gt=0, allow_inf_nan=False)
    # How weights, rates, attention and logits go with the width, for a learning rate found on a
    # narrow model to serve a wide one; None: not at all.
    mup: MuP | None = None

    @model_validator(mode="before")
    @classmethod
    def _settle_preset(cls, given: Any) -> Any:
        name = given.get("preset") if isinstance(given, Mapping) else None
        if name is None:
            return given
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}{suggest_choice(str(name), PRESETS)}")
        return with_preset(given)

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.head_channels is None and self.channels % self.heads:
            raise ValueError(
                f"channels ({self.channels}) must be a multiple of heads ({self.heads}); "
                f"the nearest above: {_round_up(self.channels, self.heads)}; "
                "or set head_channels, the width of a head"
            )
        if self.kv_heads is not None and self.heads % self.kv_heads:
            fitting = ", ".join(str(n) for n in range(1, self.heads + 1) if self.heads % n == 0)
            raise ValueError(
                f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads}); "
                f"kv_heads may be {fitting}"
            )
        return self

    @model_validator(mode="after")
    def _check_positions(self) -> Self:
        width = self.head_channels or self.channels // self.heads
        for rope in self.ropes:
            turned = rope.count_rotated_channels(width)
            if turned % 2 or turned == 0:
                share = "" if rope.rotated_share == 1 else f" {turned} rotated ones of"
                raise ValueError(
                    f"a head has{share} {width} channels, but rotary positions turn them in pairs; "
                    "set head_channels to an even number"
                )
        window = self.attention.window
        if window is not None:
            self._check_window(window)
            if window.rope is not None and not isinstance(self.position_embedding, Rope):
                raise ValueError(
                    "attention.window.rope is set, but the position_embedding is "
                    f"{self.position_embedding.kind}; leave it out, or choose Rope"
                )
            if len(window.pattern) > self.layers:
                raise ValueError(
                    f"attention.window.pattern names {len(window.pattern)} layers, of {self.layers}"
                )
        return self

    def _check_window(self, window: SlidingWindow) -> None:
        if window.size > self.positions:
            raise ValueError(
                f"attention.window.size ({window.size}) is above positions ({self.positions}), "
                "so that it hides nothing; lower it, or leave the window out"
            )

    @model_validator(mode="after")
    def _check_what_would_do_nothing(self) -> Self:
        if self.biases.head and self.head == "score":
            raise ValueError("biases.head: a score has none; leave it out")
        if bool(self.labels) != (self.head == "classes") or len(self.labels) == 1:
            raise ValueError(
                f'labels names {len(self.labels)} classes, but the head is "{self.head}"; there '
                'are two or more where it is "classes", and none elsewhere'
            )
        if self.head in ("spans", "replaced") and not self.bidirectional:
            raise ValueError(
                f'head = "{self.head}": a decoder has not read what follows; take an encoder'
            )
        if self.biases.head and self.tie_embeddings and not self.biased_when_tied:
            raise ValueError("biases.head needs a head of its own: set tie_embeddings = false")
        mixture = self.feedforward
        if self.further_heads and (self.head != "tokens" or self.bidirectional):
            raise ValueError("further_heads: a model that predicts no next token; leave it out")
        if isinstance(mixture, MixtureOfExperts):
            if self.further_heads:
                raise ValueError(
                    "further_heads: a mixture of experts balances the layers of the model alone; "
                    "leave it out, or choose a dense feedforward"
                )
            if self.biases.feedforward:
                raise ValueError("biases.feedforward: experts have no biases; leave it out")
            if mixture.dense_layers >= self.layers:
                raise ValueError(
                    f"feedforward.dense_layers ({mixture.dense_layers}) leaves no layer with "
                    f"experts, of {self.layers}"
                )
        if self.mup is not None and self.initialisation.kind == "SmallInit":
            raise ValueError(
                "SmallInit takes its standard deviation from the width, as mup does; choose "
                "another model.initialisation, or leave mup out"
            )
        if self.initialisation.kind == "SmallInit" and "initial_std" in self.model_fields_set:
            default = type(self).model_fields["initial_std"].default
            if self.initial_std != default:
                raise ValueError(
                    f"initial_std ({self.initial_std:g}) is set, but SmallInit takes it from the "
                    "width; leave one of the two out"
                )
        return self

    @property
    def plain(self) -> Self:
        """The same without `mup`, its factors on the logits of attention and of the head written
        out: what it computes, whatever its weights began as and are moved by."""
        if self.mup is None:
            return self
        width = self.head_channels or self.channels // self.heads
        scale = self.mup.query_scale(self.attention.query_scale, width)
        multiplier = self.logit_multiplier
        if self.tie_embeddings:  # an own head has smaller weights instead
            multiplier /= self.mup.multiple(self.channels)
        attention = self.attention.model_copy(update={"query_scale": scale})
        update = {"mup": None, "attention": attention, "logit_multiplier": multiplier}
        return self.model_copy(update=update)

    @property
    def network(self) -> Network:
        """What a feed-forward network is, or an expert of it."""
        chosen = self.feedforward
        return chosen.network if isinstance(chosen, MixtureOfExperts) else chosen

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The rotary positions of its layers: none, one, or those of global and local layers."""
        if not isinstance(self.position_embedding, Rope):
            return ()
        window = self.attention.window
        local = None if window is None else window.rope
        return (self.position_embedding,) if local is None else (self.position_embedding, local)

    def for_tokenizer(self, entries: int) -> Self:
        """The same with its vocabulary settled for a tokenizer of `entries` ids.

        Raises ConfigError when the vocabulary set in the run file has fewer.
        """
        if self.vocabulary is None:
            return self.model_copy(update={"vocabulary": _round_up(entries, ALIGNMENT)})
        if self.vocabulary < entries:
            raise ConfigError(
                f"model.vocabulary ({self.vocabulary}) is below the tokenizer's {entries} entries; "
                f"leave it out, or set {_round_up(entries, ALIGNMENT)}"
            )
        return self

    def with_head(self, head: Head, labels: tuple[str, ...] = ()) -> Self:
        """The same with a head of another kind."""
        update: dict[str, Any] = {"head": head, "labels": labels}
        if not self.bidirectional:  # an encoder's setting is that of its logits of tokens alone
            update["biases"] = self.biases.model_copy(update={"head": False})
        return self.model_copy(update=update)

    def with_score_head(self) -> Self:
        """The same with one score of each place instead of logits."""
        return self.with_head("score")

    @property
    def description(self) -> str:
        """What a model is by its head, for errors."""
        return {
            "tokens": "a language model",
            "score": "a reward model",
            "classes": "a classifier",
            "spans": "a model that finds answers",
            "replaced": "a model that finds replaced tokens",
        }[self.head]

    @property
    def outputs(self) -> int:
        """Numbers that the head makes of a place, or of a text."""
        if self.head == "tokens":
            return self.shape.vocabulary
        return {"score": 1, "classes": len(self.labels), "spans": 2, "replaced": 1}[self.head]

    @property
    def logit_channels(self) -> int:
        """Width of what logits are made of."""
        return self.channels

    @property
    def generator_model(self) -> "DecoderConfig | None":
        """The model that is trained with this one and replaces tokens for it; None: there is
        none."""
        return None

    @property
    def without_generator(self) -> Self:
        """The same without what replaces tokens for it in training."""
        return self

    @property
    def without_further_heads(self) -> Self:
        """The same with the head of the next token alone."""
        return self.model_copy(update={"further_heads": 0}) if self.further_heads else self

    def with_further_heads(self, count: int) -> Self:
        """The same with `count` heads for the tokens after the next. Raises ValueError for a model
        that can have none."""
        try:
            return type(self).model_validate({**dict(self), "preset": None, "further_heads": count})
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None

    def takes_mask(self, seen: int) -> bool:
        """Whether the kernel of some layer may take a mask of `seen` positions: what is done in
        blocks takes none."""
        attention, window = self.attention, self.attention.window
        if attention.logit_cap is not None or attention.sinks:
            return False
        if isinstance(self.position_embedding, Alibi):
            return False
        local = window is not None and all(map(window.is_local, range(self.layers)))
        size = None if window is None else window.size
        hides = hides_by_distance(size, seen, not self.bidirectional)
        return not local or not hides or self.further_heads > 0

    @property
    def shape(self) -> Shape:
        """Every size. Raises ConfigError while the vocabulary is not settled."""
        if self.vocabulary is None:
            raise ConfigError(
                "model.vocabulary is not set and no tokenizer has been named; set one of the two"
            )
        return Shape(
            vocabulary=self.vocabulary,
            layers=self.layers,
            channels=self.channels,
            heads=self.heads,
            kv_heads=self.kv_heads or self.heads,
            head_channels=self.head_channels or self.channels // self.heads,
            feedforward_channels=self.feedforward_channels or self._usual_width(),
        )

    @property
    def shapes(self) -> DecoderShapes:
        """The sizes of every parameter. Raises ConfigError while the vocabulary is not settled."""
        return _build_shapes(self)

    def _declare_shapes(self) -> DecoderShapes:
        shape = self.shape
        learnt = isinstance(self.position_embedding, LearnedPositions)
        return DecoderShapes(
            embedding=TableShape(shape.vocabulary, shape.channels),
            position_embedding=TableShape(self.positions, shape.channels) if learnt else None,
            layers=tuple(self._layer_shape(shape, index) for index in range(self.layers)),
            norm=None if isinstance(self.block, PostNorm) else self._norm_shape(shape.channels),
            head=self._head_shape(shape),
            further_layers=(self._layer_shape(shape, self.layers),) * self.further_heads,
        )

    def _head_shape(self, shape: Shape) -> ProjectionShape | None:
        if self.head != "tokens":
            return ProjectionShape(shape.channels, self.outputs, self.bidirectional)
        if self.tie_embeddings:
            return None
        return ProjectionShape(shape.channels, shape.vocabulary, self.biases.head)

    def _layer_shape(self, shape: Shape, index: int) -> LayerShape:
        norm, block = self._norm_shape(shape.channels), self.block
        before = None if isinstance(block, OutputNorm) else norm
        after = norm if isinstance(block, OutputNorm | SandwichNorm) else None
        shared = isinstance(block, ParallelBlock) and block.shared_norm
        return LayerShape(
            attention_norm=before,
            attention=self._attention_shape(shape),
            attention_output_norm=after,
            feedforward_norm=None if shared else before,
            feedforward=self._feedforward_shape(shape, index),
            feedforward_output_norm=after,
        )

    def _attention_shape(self, shape: Shape) -> AttentionShape:
        queries, keys = shape.heads * shape.head_channels, shape.kv_heads * shape.head_channels
        wide, normed = self.attention.qk_norm == "projection", self.attention.qk_norm is not None
        key_value = ProjectionShape(shape.channels, keys, self.biases.qkv)
        plain = AttentionShape(
            query=ProjectionShape(shape.channels, queries, self.biases.qkv),
            key=key_value,
            value=key_value,
            output=ProjectionShape(queries, shape.channels, self.biases.output),
            query_norm=self._norm_shape(queries if wide else shape.head_channels)
            if normed
            else None,
            key_norm=self._norm_shape(keys if wide else shape.head_channels) if normed else None,
            sinks=VectorShape(shape.heads) if self.attention.sinks else None,
        )
        return self.attention.add_parts(plain)

    def _feedforward_shape(self, shape: Shape, index: int) -> FeedForwardShape | MixtureShape:
        mixture = self.feedforward
        if not isinstance(mixture, MixtureOfExperts) or index < mixture.dense_layers:
            return self._dense_shape(shape.channels, shape.feedforward_channels)
        between = mixture.expert_channels or shape.feedforward_channels
        chosen = mixture.experts, mixture.active
        inner = StackShape(*chosen, shape.channels, between)
        shared = mixture.shared_experts * between
        return MixtureShape(
            router=ProjectionShape(shape.channels, mixture.experts),
            balance_bias=VectorShape(mixture.experts) if mixture.balance_bias else None,
            experts=ExpertsShape(
                gate=inner if isinstance(self.network, GATED) else None,
                up=inner,
                down=StackShape(*chosen, between, shape.channels),
            ),
            shared=self._dense_shape(shape.channels, shared) if shared else None,
        )

    def _dense_shape(self, channels: int, between: int) -> FeedForwardShape:
        inner = ProjectionShape(channels, between, self.biases.feedforward)
        return FeedForwardShape(
            gate=inner if isinstance(self.network, GATED) else None,
            up=inner,
            down=ProjectionShape(between, channels, self.biases.feedforward),
        )

    def _norm_shape(self, channels: int) -> NormShape:
        return NormShape(channels, isinstance(self.norm, LayerNorm) and self.norm.bias)

    def _usual_width(self) -> int:
        if not isinstance(self.network, GATED):
            return 4 * self.channels
        return _round_up(math.ceil(self.channels * 8 / 3), ALIGNMENT)


@functools.lru_cache(maxsize=64)  # a search of layouts asks for it thousands of times
def _build_shapes(config: DecoderConfig) -> DecoderShapes:
    return config._declare_shapes()


@functools.lru_cache(maxsize=64)
def count_parameters(config: DecoderConfig) -> ParameterCount:
    """Exactly as many as `Decoder(config)` has, without making it."""
    shapes = config.shapes
    return ParameterCount(
        embedding=count(shapes.before_layers),
        layers=sum(count(layer) for layer in shapes.layers) + count(shapes.norm),
        head=count(shapes.after_layers),
        idle=count_idle(shapes.layers),
        generator=count(shapes.beside),
        further_heads=count(shapes.further_layers),
    )


def parameter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Names and sizes of the parameters of `Decoder(config)`, without making it."""
    return dict(list_named_sizes(config.shapes))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
