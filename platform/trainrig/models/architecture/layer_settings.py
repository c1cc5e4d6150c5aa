"""Settings of a layer's parts: feed-forward networks, norms, and position encodings.

Norms have a position in the layer. Position encodings can be extended to longer sequences.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.config.field_marks import ADDED_LATER


class SwiGLU(Settings):
    """Feed-forward network of three matrices, gated by SiLU (Shazeer 2020, arXiv:2002.05202)."""

    # Numbers that each hidden channel keeps for the backward pass beside the outputs of products.
    kept_between: ClassVar[int] = 2

    kind: Literal["SwiGLU"] = "SwiGLU"


class GEGLU(Settings):
    """Feed-forward network of three matrices, gated by GELU (Shazeer 2020, arXiv:2002.05202)."""

    kept_between: ClassVar[int] = 2

    kind: Literal["GEGLU"] = "GEGLU"
    tanh: bool = True  # use the tanh approximation of GELU, as Gemma does


class GELU(Settings):
    """Feed-forward network of two matrices with GELU.

    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.
    """

    kept_between: ClassVar[int] = 1

    kind: Literal["GELU"] = "GELU"
    tanh: bool = True  # use the tanh approximation of GELU, as GPT-2 does


class ReLU(Settings):
    """Feed-forward network of two matrices with ReLU, as in the first Transformer.

    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """

    kept_between: ClassVar[int] = 1

    kind: Literal["ReLU"] = "ReLU"


class ClampedSwiGLU(Settings):
    """SwiGLU whose gate and values are clamped, and whose values are increased by 1, as in gpt-oss.

    Source: OpenAI 2025, arXiv:2508.10925.
    """

    kept_between: ClassVar[int] = 5

    kind: Literal["ClampedSwiGLU"] = "ClampedSwiGLU"
    alpha: float = Field(default=1.702, gt=0, allow_inf_nan=False)  # factor inside the sigmoid
    # Largest value of the gate, and largest distance of the other values from 0.
    limit: float = Field(default=7.0, gt=0, allow_inf_nan=False)


Network = SwiGLU | GEGLU | GELU | ReLU | ClampedSwiGLU
GATED = (SwiGLU, GEGLU, ClampedSwiGLU)


class ExpertGroups(Settings):
    """Choice of experts from the best groups only, which limits the devices a token is sent to.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.2.2.
    """

    count: int = Field(ge=2)  # number of groups of neighbouring experts, all of one size
    active: int = Field(ge=1)  # number of groups that a token's experts are chosen from
    # Number of experts of a group whose scores add up to the group's score: 1 in DeepSeek-V2, 2 in
    # DeepSeek-V3.
    best: int = Field(default=2, ge=1)


class MixtureOfExperts(Settings):
    """Mixture of experts: a router sends each token to `active` of `experts` networks.

    Sources: Shazeer et al. 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961.
    """

    kind: Literal["MixtureOfExperts"] = "MixtureOfExperts"
    experts: int = Field(ge=2)  # number of expert networks in a layer
    active: int = Field(ge=1)  # number of experts that each token is sent to
    # Hidden width of an expert; None: feedforward_channels.
    expert_channels: int | None = Field(default=None, ge=1)
    network: Network = Field(default=SwiGLU(), discriminator="kind")  # kind of network of an expert
    # Scores of the experts: a softmax over all, or a sigmoid of each (DeepSeek-V3,
    # arXiv:2412.19437).
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalise: bool = True  # scale the scores of the chosen experts to a sum of 1
    scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # factor on the experts' outputs
    # Number of shared experts, which every token goes through as well (arXiv:2401.06066). They are
    # one network of their total width.
    shared_experts: int = Field(default=0, ge=0)
    # Number of first layers with a dense network instead of experts.
    dense_layers: int = Field(default=0, ge=0)
    # Most tokens that an expert takes, as a multiple of an even share of the micro-batch; later
    # tokens skip the expert; None: no limit.
    capacity: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    # Weight of the balance loss, experts * sum(share of tokens * mean score) (arXiv:2101.03961,
    # equation 4); 0: no balance loss.
    balance_loss: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    # Weight of the router z-loss, the mean square of the log of the sum of exponentials of the
    # router's logits (Zoph et al. 2022, arXiv:2202.08906, equation 5); 0: no z-loss.
    router_z_loss: float = Field(default=0.001, ge=0, allow_inf_nan=False)
    # Balance experts by a learnt bias that is added to the scores for the choice only. Its gradient
    # is each expert's excess of tokens, so the optimizer moves it (Wang et al. 2024,
    # arXiv:2408.15664).
    balance_bias: bool = False
    router_bias: Annotated[bool, ADDED_LATER] = False  # add a learnt bias to the router's logits
    # Multiply the output of the shared experts by a sigmoid gate, computed from the token (Qwen2,
    # arXiv:2407.10671).
    shared_gate: Annotated[bool, ADDED_LATER] = False
    # Groups that limit the choice of experts; None: choose among all experts.
    groups: Annotated[ExpertGroups | None, ADDED_LATER] = None

    @model_validator(mode="after")
    def _check_active(self) -> Self:
        if self.active > self.experts:
            raise ValueError(f"active ({self.active}) must be at most experts ({self.experts})")
        if self.shared_gate and not self.shared_experts:
            raise ValueError(
                "shared_gate needs shared experts; set shared_experts, or leave it out"
            )
        if self.groups is not None:
            self._check_groups(self.groups)
        return self

    def _check_groups(self, groups: ExpertGroups) -> None:
        if self.experts % groups.count:
            raise ValueError(
                f"groups.count ({groups.count}) must divide experts ({self.experts}) evenly"
            )
        size = self.experts // groups.count
        if groups.active > groups.count or groups.active * size < self.active:
            raise ValueError(
                f"groups.active ({groups.active}) must be at most groups.count ({groups.count}), "
                f"and its groups of {size} experts need at least active ({self.active}) experts"
            )
        if groups.best > size:
            raise ValueError(f"groups.best ({groups.best}) exceeds the {size} experts of a group")


FeedForward = Annotated[Network | MixtureOfExperts, Field(discriminator="kind")]


Epsilon = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class RMSNorm(Settings):
    """Division by the root mean square over channels (Zhang & Sennrich 2019, arXiv:1910.07467)."""

    kind: Literal["RMSNorm"] = "RMSNorm"
    # Constant added under the root to avoid division by 0; Llama 2 and 3 have the same.
    epsilon: Epsilon = 1e-5
    # Store the gain as 1 + weight, with initial weights of 0, as Gemma does.
    unit_offset: bool = False


class LayerNorm(Settings):
    """Layer norm: subtract the mean, divide by the standard deviation over channels.

    Source: Ba et al. 2016, arXiv:1607.06450.
    """

    kind: Literal["LayerNorm"] = "LayerNorm"
    epsilon: Epsilon = 1e-5  # constant added under the root to avoid division by 0
    bias: bool = True  # add a learnt bias after the gain


Normalisation = Annotated[RMSNorm | LayerNorm, Field(discriminator="kind")]


class PreNorm(Settings):
    """x + f(norm(x)), as in GPT-2 and Llama (Xiong et al. 2020, arXiv:2002.04745)."""

    kind: Literal["PreNorm"] = "PreNorm"


class PostNorm(Settings):
    """norm(x + f(x)), and no norm after the last layer, as in the first Transformer.

    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """

    kind: Literal["PostNorm"] = "PostNorm"


class SandwichNorm(Settings):
    """x + norm(f(norm(x))), as in Gemma 2 and 3 (arXiv:2408.00118).

    Earlier source: Ding et al. 2021, arXiv:2105.13290.
    """

    kind: Literal["SandwichNorm"] = "SandwichNorm"


class OutputNorm(Settings):
    """x + norm(f(x)), as in OLMo 2 (arXiv:2501.00656, section 3.3.2)."""

    kind: Literal["OutputNorm"] = "OutputNorm"


class ParallelBlock(Settings):
    """x + attention(norm(x)) + feedforward(norm(x)), as in GPT-J and PaLM (arXiv:2204.02311)."""

    kind: Literal["ParallelBlock"] = "ParallelBlock"
    # Use one norm for both parts; GPT-NeoX has two (arXiv:2204.06745).
    shared_norm: bool = True


Block = Annotated[
    PreNorm | PostNorm | SandwichNorm | OutputNorm | ParallelBlock, Field(discriminator="kind")
]


Factor = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class LinearInterpolation(Settings):
    """Divide positions by `factor` (Chen et al. 2023, arXiv:2306.15595)."""

    kind: Literal["LinearInterpolation"] = "LinearInterpolation"
    factor: Factor  # ratio of the new sequence length to the old one


class NTKAware(Settings):
    """Enlarge the base: the slowest channels slow down by `factor`, the fastest do not change.

    theta * factor ** (D / (D - 2)) for D rotated channels (bloc97 2023; Peng et al. 2023,
    arXiv:2309.00071, section 3.1). The same at every length, unlike Transformers' `dynamic`.
    """

    kind: Literal["NTKAware"] = "NTKAware"
    factor: Factor  # ratio of the new sequence length to the old one


class YaRN(Settings):
    """Interpolate slow channels and leave fast ones, with a ramp in between (arXiv:2309.00071)."""

    kind: Literal["YaRN"] = "YaRN"
    factor: Factor  # ratio of the new sequence length to the old one
    original_positions: int = Field(ge=1)  # sequence length of the original training, in tokens
    # Number of turns over `original_positions` from which on a channel is not changed.
    fast_turns: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    # Number of turns over `original_positions` below which a channel is fully interpolated.
    slow_turns: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Factor on both queries and keys; None: 0.1 ln(factor) + 1.
    attention_factor: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    whole_channels: bool = True  # round the ends of the ramp to whole channels

    @model_validator(mode="after")
    def _check_turns(self) -> Self:
        if self.slow_turns >= self.fast_turns:
            raise ValueError(
                f"slow_turns ({self.slow_turns:g}) must be below fast_turns ({self.fast_turns:g})"
            )
        return self


class Llama3Scaling(Settings):
    """Scale channels by wavelength with a ramp, as Llama 3.1 does.

    Source: Grattafiori et al. 2024, arXiv:2407.21783.
    """

    kind: Literal["Llama3Scaling"] = "Llama3Scaling"
    factor: Factor = 8.0  # ratio of the new sequence length to the old one
    # Sequence length of the original training, in tokens.
    original_positions: int = Field(default=8192, ge=1)
    # Number of turns over `original_positions` below which a channel is fully interpolated.
    slow_turns: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Number of turns over `original_positions` from which on a channel is not changed.
    fast_turns: float = Field(default=4.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_turns(self) -> Self:
        if self.slow_turns >= self.fast_turns:
            raise ValueError(
                f"slow_turns ({self.slow_turns:g}) must be below fast_turns ({self.fast_turns:g})"
            )
        return self


RopeScaling = Annotated[
    LinearInterpolation | NTKAware | YaRN | Llama3Scaling, Field(discriminator="kind")
]


class Rope(Settings):
    """Rotary positions: queries and keys rotated by angles that grow with position.

    Source: Su et al. 2021, arXiv:2104.09864.
    """

    kind: Literal["Rope"] = "Rope"
    # Base of the angles; longer sequences need a larger one.
    theta: float = Field(default=10_000.0, gt=0, allow_inf_nan=False)
    # Method to extend a trained model to longer sequences; None: no extension.
    scaling: RopeScaling | None = None
    # Fraction of each head's channels that are rotated, from the first on; GPT-NeoX has 0.25.
    rotated_share: float = Field(default=1.0, gt=0, le=1)
    # Pattern of layers with and without rotary positions, repeated from the first layer on. SmolLM3
    # leaves them out in every fourth layer (NoPE; Yang et al. 2025, arXiv:2501.18795). None: every
    # layer has them. The layers of further heads always have them.
    pattern: Annotated[tuple[Literal["rotated", "unrotated"], ...] | None, ADDED_LATER] = Field(
        default=None, min_length=1
    )

    def is_rotated(self, layer: int) -> bool:
        """Return whether layer `layer`, counted from 0, rotates queries and keys."""
        return self.pattern is None or self.pattern[layer % len(self.pattern)] == "rotated"

    def count_rotated_channels(self, head_channels: int) -> int:
        """Return how many of `head_channels` are rotated."""
        return int(head_channels * self.rotated_share)


class Alibi(Settings):
    """ALiBi: attention logits that fall linearly with distance, at a fixed rate for each head.

    Source: Press et al. 2022, arXiv:2108.12409.
    """

    kind: Literal["Alibi"] = "Alibi"


class LearnedPositions(Settings):
    """A learnt vector for each position, added to the token's embedding, as in GPT-2."""

    kind: Literal["LearnedPositions"] = "LearnedPositions"


class NoPositions(Settings):
    """No position encoding: only the causal mask tells the order.

    Source: Kazemnejad et al. 2023, arXiv:2305.19466.
    """

    kind: Literal["NoPositions"] = "NoPositions"


PositionEmbedding = Annotated[
    Rope | Alibi | LearnedPositions | NoPositions, Field(discriminator="kind")
]


class ContextStage(Settings):
    """Change of positions at a step, to train on longer sequences from then on.

    Keys that a stage does not set stay as before.
    """

    # First step with these positions, counted from 0. Step 0 is the first one of a run that
    # continues another run.
    from_step: int = Field(ge=0)
    # Longest sequence from then on, in tokens; None: as before.
    positions: int | None = Field(default=None, ge=1)
    # Rotary positions (`model.position_embedding`) from then on; None: as before. The layers that
    # rotate stay the same, so leave `pattern` out.
    rope: Rope | None = None
