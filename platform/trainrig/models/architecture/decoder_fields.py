"""Fields of a decoder's settings, and the checks that they fit each other."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from trainrig.config import Settings, suggest_choice
from trainrig.config.field_marks import FitsSeveral, assume_kind
from trainrig.models.architecture import attention_settings, layer_settings
from trainrig.models.architecture.initialisation import GPT2Init, Initialisation, MuP
from trainrig.models.architecture.presets import PRESETS, with_preset

AttentionKind = Annotated[
    attention_settings.AttentionSettings
    | attention_settings.GatedAttention
    | attention_settings.LatentAttention,
    Field(discriminator="kind"),
    assume_kind("Attention"),
    FitsSeveral(),
]
Head = Literal["tokens", "score", "classes", "spans", "replaced"]


def _let_a_preset_stand_for_sizes(schema: dict[str, Any]) -> None:
    sizes = schema.pop("required", [])
    schema["anyOf"] = [{"required": ["preset"]}, {"required": sizes}]
    # A table without `kind` is a decoder, so only other kinds must name it.
    if schema["properties"]["kind"]["const"] != "Decoder":
        schema["required"] = ["kind"]


class DecoderFields(Settings):
    """Fields of DecoderConfig and of its subclasses, as in run files."""

    model_config = ConfigDict(json_schema_extra=_let_a_preset_stand_for_sizes)

    bidirectional: ClassVar[bool] = False  # tokens also attend to later tokens
    biased_when_tied: ClassVar[bool] = False  # a tied head may have a bias

    kind: Literal["Decoder"] = "Decoder"
    # Known model to start from (docs/models.md lists them); other keys of this table change it. In
    # a resolved run file its keys are written out instead.
    preset: str | None = None
    layers: int = Field(ge=1)  # number of layers
    channels: int = Field(ge=1)  # width of the residual stream
    heads: int = Field(ge=1)  # attention heads
    # Heads of keys and values; None: the same number as `heads`.
    kv_heads: int | None = Field(default=None, ge=1)
    head_channels: int | None = Field(default=None, ge=1)  # width of a head; None: channels / heads
    # Width of the feed-forward network; None: 4 times the channels, or with a gated network
    # 8/3 of them, rounded up to a multiple of 64. Three gated matrices of that width are as
    # large as two of 4 times the channels (arXiv:2002.05202, section 3).
    feedforward_channels: int | None = Field(default=None, ge=1)
    # Entries of the embedding; None: the tokenizer's number of ids, rounded up to a multiple of 64.
    vocabulary: int | None = Field(default=None, ge=1)
    positions: int = Field(default=2048, ge=1)  # length of the longest sequence, in tokens
    # How the model encodes positions.
    position_embedding: layer_settings.PositionEmbedding = layer_settings.Rope()
    attention: AttentionKind = attention_settings.AttentionSettings()  # options of attention
    # Feed-forward network of a layer.
    feedforward: layer_settings.FeedForward = layer_settings.SwiGLU()
    norm: layer_settings.Normalisation = layer_settings.RMSNorm()  # kind of norm
    # Position of the norms in a layer, and whether its two parts run in parallel.
    block: layer_settings.Block = layer_settings.PreNorm()
    biases: attention_settings.Biases = attention_settings.Biases()  # linear layers that add a bias
    # Output of the head: "tokens" gives logits of the next token, "score" one score for each
    # position (reward models), "classes" a logit for each class of a text, "spans" two logits for
    # each position (first and last token of a span), and "replaced" one logit for each position
    # (whether its token was replaced). All but "tokens" are neither tied nor capped; post-training
    # makes all but "tokens" and "replaced" from a language model.
    head: Head = "tokens"
    # Names of the classes, in the order of the head's outputs; only with head = "classes".
    labels: tuple[str, ...] = ()
    # Number of further heads in training, for the tokens after the next one. Each adds a layer
    # before the final norm and the shared output head (Gloeckle et al. 2024, arXiv:2404.19737).
    further_heads: int = Field(default=0, ge=0)
    tie_embeddings: bool = True  # use the embedding's weights for the output head
    # Factor on the embedding output; Gemma's is sqrt(channels).
    embedding_multiplier: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Factor on what attention and the feed-forward network add to the residual stream.
    residual_multiplier: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    logit_multiplier: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # factor on the logits
    # Soft cap on the output logits x, which become cap * tanh(x / cap), as in Gemma 2
    # (arXiv:2408.00118); None: no cap.
    logit_cap: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    initialisation: Initialisation = GPT2Init()  # scheme for the size of initial weights
    # Standard deviation of initial weights; GPT-2's (Radford et al. 2019).
    initial_std: float = Field(default=0.02, gt=0, allow_inf_nan=False)
    # Scaling of initial weights, learning rates, attention and logits with the width (muP), so that
    # a learning rate found on a narrow model suits a wide one; None: no scaling.
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
                f"the next multiple is {round_up(self.channels, self.heads)}; "
                "or set head_channels, the width of a head"
            )
        if self.kv_heads is not None and self.heads % self.kv_heads:
            fitting = ", ".join(str(n) for n in range(1, self.heads + 1) if self.heads % n == 0)
            raise ValueError(
                f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads}); "
                f"kv_heads may be {fitting}"
            )
        width = self.head_channels or self.channels // self.heads
        self.attention.check_heads(self.heads, self.kv_heads or self.heads, width)
        return self

    @model_validator(mode="after")
    def _check_positions(self) -> Self:
        width = self.rotary_channels
        for rope in self.ropes:
            rotated = rope.count_rotated_channels(width)
            if rotated % 2 or rotated == 0:
                share = "" if rope.rotated_share == 1 else f" {rotated} rotated channels of"
                whole = self.head_channels or self.channels // self.heads
                key = "head_channels" if width == whole else "attention.rotated_channels"
                raise ValueError(
                    f"a head has{share} {width} channels, but rotary positions rotate pairs; "
                    f"set {key} to an even number"
                )
        pattern = self.ropes[0].pattern if self.ropes else None
        if pattern is not None:
            self._check_pattern("position_embedding.pattern", len(pattern))
        if pattern is not None and "rotated" not in pattern:
            raise ValueError(
                "position_embedding.pattern leaves out rotary positions in every layer; choose "
                "NoPositions as the position_embedding"
            )
        window = self.attention.window
        if window is not None:
            self._check_window(window)
            if window.rope is not None and window.rope.pattern is not None:
                raise ValueError(
                    "attention.window.rope.pattern does nothing; set position_embedding.pattern, "
                    "which is for all layers"
                )
            if window.rope is not None and not isinstance(
                self.position_embedding, layer_settings.Rope
            ):
                raise ValueError(
                    "attention.window.rope is set, but the position_embedding is "
                    f"{self.position_embedding.kind}; leave it out, or choose Rope"
                )
            self._check_pattern("attention.window.pattern", len(window.pattern))
        return self

    def _check_pattern(self, name: str, entries: int) -> None:
        if entries > self.layers:
            raise ValueError(
                f"{name} has {entries} entries, but the model has {self.layers} layers; shorten it"
            )

    def _check_window(self, window: attention_settings.SlidingWindow) -> None:
        if window.size > self.positions:
            raise ValueError(
                f"attention.window.size ({window.size}) exceeds positions ({self.positions}), so "
                "the window hides nothing; lower it, or leave the window out"
            )

    @model_validator(mode="after")
    def _check_what_would_do_nothing(self) -> Self:
        if self.biases.head and self.head == "score":
            raise ValueError("biases.head: a score head has no bias; leave it out")
        if bool(self.labels) != (self.head == "classes") or len(self.labels) == 1:
            raise ValueError(
                f'labels names {len(self.labels)} classes, but the head is "{self.head}"; name '
                'two or more with head = "classes", and none with another head'
            )
        if self.head in ("spans", "replaced") and not self.bidirectional:
            raise ValueError(
                f'head = "{self.head}": a decoder does not see later tokens; choose an encoder'
            )
        if self.biases.head and self.tie_embeddings and not self.biased_when_tied:
            raise ValueError("biases.head needs an untied head; set tie_embeddings = false")
        mixture = self.feedforward
        if self.further_heads and (self.head != "tokens" or self.bidirectional):
            raise ValueError(
                "further_heads: this model does not predict the next token; leave it out"
            )
        if isinstance(mixture, layer_settings.MixtureOfExperts):
            if self.further_heads:
                raise ValueError(
                    "further_heads: a mixture of experts does not balance further layers; "
                    "leave it out, or choose a dense feedforward"
                )
            if mixture.dense_layers >= self.layers:
                raise ValueError(
                    f"feedforward.dense_layers ({mixture.dense_layers}) leaves no experts in the "
                    f"{self.layers} layers; lower it"
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
    def rotary_channels(self) -> int:
        """Number of channels of a head that rotary positions may rotate."""
        width = self.head_channels or self.channels // self.heads
        return self.attention.find_rotary_channels(width)

    @property
    def ropes(self) -> tuple[layer_settings.Rope, ...]:
        """The different rotary positions of the layers: none, one, or a global and a local one."""
        if not isinstance(self.position_embedding, layer_settings.Rope):
            return ()
        window = self.attention.window
        local = None if window is None else window.rope
        return (self.position_embedding,) if local is None else (self.position_embedding, local)


def round_up(number: int, multiple: int) -> int:
    """Return the least multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple
