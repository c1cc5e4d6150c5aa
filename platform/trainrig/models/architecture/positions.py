"""Settings of position encodings, and of their extension to longer sequences."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings

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
    # Rotary positions (`model.position_embedding`) from then on; None: as before.
    rope: Rope | None = None
