"""How a decoder knows the order of tokens."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings

Factor = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class LinearInterpolation(Settings):
    """Positions divided by `factor` (Chen et al. 2023, arXiv:2306.15595)."""

    kind: Literal["LinearInterpolation"] = "LinearInterpolation"
    factor: Factor  # how many times longer sequences become


class NTKAware(Settings):
    """A larger base, which slows slow channels by `factor` and leaves the fastest as they are.

    theta * factor ** (D / (D - 2)) for D rotated channels (bloc97 2023; Peng et al. 2023,
    arXiv:2309.00071, section 3.1). The same at every length, unlike Transformers' `dynamic`.
    """

    kind: Literal["NTKAware"] = "NTKAware"
    factor: Factor  # how many times longer sequences become


class YaRN(Settings):
    """Slow channels interpolated, fast ones left alone, a ramp between (arXiv:2309.00071)."""

    kind: Literal["YaRN"] = "YaRN"
    factor: Factor  # how many times longer sequences become
    original_positions: int = Field(ge=1)  # length of the sequences before
    # Turns over `original_positions` from which on a channel is left alone.
    fast_turns: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    # Turns over `original_positions` below which a channel is interpolated in full.
    slow_turns: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Factor on both queries and keys; None: 0.1 ln(factor) + 1.
    attention_factor: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    whole_channels: bool = True  # whether the ramp begins and ends at a whole channel

    @model_validator(mode="after")
    def _check_turns(self) -> Self:
        if self.slow_turns >= self.fast_turns:
            raise ValueError(
                f"slow_turns ({self.slow_turns:g}) must be below fast_turns ({self.fast_turns:g})"
            )
        return self


class Llama3Scaling(Settings):
    """Llama 3.1's: by wavelength, with a ramp (Grattafiori et al. 2024, arXiv:2407.21783)."""

    kind: Literal["Llama3Scaling"] = "Llama3Scaling"
    factor: Factor = 8.0  # how many times longer sequences become
    original_positions: int = Field(default=8192, ge=1)  # length of the sequences before
    # Turns over `original_positions` below which a channel is interpolated in full.
    slow_turns: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Turns over `original_positions` from which on a channel is left alone.
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
    """Queries and keys turned by an angle that grows with their position (arXiv:2104.09864)."""

    kind: Literal["Rope"] = "Rope"
    # Base of the angles; larger for longer sequences.
    theta: float = Field(default=10_000.0, gt=0, allow_inf_nan=False)
    scaling: RopeScaling | None = None  # how a trained model is taken to longer sequences
    # Share of the channels of a head that are turned, the first ones; GPT-NeoX has 0.25.
    rotated_share: float = Field(default=1.0, gt=0, le=1)

    def count_rotated_channels(self, head_channels: int) -> int:
        """How many of `head_channels` are turned."""
        return int(head_channels * self.rotated_share)


class Alibi(Settings):
    """Logits that fall with distance, at a rate for each head (Press et al. 2022,
    arXiv:2108.12409)."""

    kind: Literal["Alibi"] = "Alibi"


class LearnedPositions(Settings):
    """A learnt vector for each position, added to the token's: GPT-2's."""

    kind: Literal["LearnedPositions"] = "LearnedPositions"


class NoPositions(Settings):
    """No positions: the causal mask alone tells order (Kazemnejad et al. 2023,
    arXiv:2305.19466)."""

    kind: Literal["NoPositions"] = "NoPositions"


PositionEmbedding = Annotated[
    Rope | Alibi | LearnedPositions | NoPositions, Field(discriminator="kind")
]


class ContextStage(Settings):
    """From a step on, positions of another kind, for longer sequences. What a stage does not say
    stays as it was before."""

    # First step of data with these positions, counted from 0. 0: from the beginning, of a run that
    # continues from another.
    from_step: int = Field(ge=0)
    # Length in tokens of the longest sequence from then on; None: as before.
    positions: int | None = Field(default=None, ge=1)
    # The angles of `model.position_embedding` from then on; None: as before.
    rope: Rope | None = None
