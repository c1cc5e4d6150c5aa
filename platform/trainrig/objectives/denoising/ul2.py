"""UL2: a mixture of denoisers, from short spans to the whole end of a text, each with a mode.

Tay et al. 2022, "UL2: Unifying Language Learning Paradigms", arXiv:2205.05131, section 3 and table
1. A denoiser removes a share of a text, in spans of some mean length. Regular denoisers (R) remove
little in short spans, as T5 does. Extreme ones (X) remove much, or long spans. The sequential one
(S) removes the end of the text. A token before the text names the mode, so that a user can select a
mode later. Each sample gets one denoiser, drawn by its number: see mixture.py.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.objectives.denoising.mixture import MixtureBase, MixtureCorruption, NamedObjective
from trainrig.objectives.denoising.needed_tokens import find_modes
from trainrig.objectives.denoising.span_corruption import Mode, SpanCorruption
from trainrig.tokens.tokenizers.encode import Encoder


class Denoiser(Settings):
    """One way to corrupt texts."""

    mode: Mode  # mode whose token is put before texts
    noise_density: float = Field(gt=0, lt=1)  # share of tokens that are removed
    # Mean length of a span, in tokens. None: a single span, the end of the text.
    mean_span: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    # Weight of the denoiser: its share of samples is this over the sum of all weights.
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    @property
    def called(self) -> str:
        """The name of the denoiser in metrics, such as `R-0.15-3`: mode, density and mean span."""
        span = "end" if self.mean_span is None else f"{self.mean_span:g}"
        return f"{self.mode}-{self.noise_density:g}-{span}"


# The denoisers of the paper's table 1, with equal weights.
DENOISERS = (
    Denoiser(mode="R", noise_density=0.15, mean_span=3.0),
    Denoiser(mode="R", noise_density=0.15, mean_span=8.0),
    Denoiser(mode="S", noise_density=0.25),
    Denoiser(mode="X", noise_density=0.5, mean_span=3.0),
    Denoiser(mode="X", noise_density=0.5, mean_span=8.0),
    Denoiser(mode="X", noise_density=0.15, mean_span=64.0),
    Denoiser(mode="X", noise_density=0.5, mean_span=64.0),
)


class UL2(MixtureBase):
    """Cross-entropy of what denoisers of several kinds removed from texts.

    Each sample gets one denoiser. The loss is averaged over all targets of the global batch.
    """

    unmixable: ClassVar[str | None] = (
        "it is a mixture itself; use SpanCorruption here, with `mode`, once for each denoiser"
    )

    kind: Literal["UL2"] = "UL2"  # type: ignore[assignment]  # not the base class's kind
    # Denoisers with their weights; the default is the paper's seven.
    denoisers: tuple[Denoiser, ...] = Field(default=DENOISERS, min_length=2)
    # Whether text and spans are in one row, for a decoder that reads the text as a prefix.
    # Otherwise they are for an encoder and a decoder.
    joined: bool = False
    corruption_seed: int = 0  # random seed for the choice of spans

    @model_validator(mode="after")
    def _check_denoisers(self) -> Self:
        name, count = Counter(denoiser.called for denoiser in self.denoisers).most_common(1)[0]
        if count > 1:
            raise ValueError(f"denoisers: {count} are {name}; keep one of them, with more weight")
        return self

    def list_named(self) -> tuple[NamedObjective, ...]:
        """Return the denoisers."""
        return tuple(
            NamedObjective(denoiser.called, denoiser.weight, self._make_objective(denoiser))
            for denoiser in self.denoisers
        )

    def make_corruption(self, encoder: Encoder) -> MixtureCorruption:
        """Return the corruption that assigns rows to denoisers.

        Raises DataError if the tokenizer lacks the token of a mode.
        """
        find_modes(encoder, self.kind, sorted({denoiser.mode for denoiser in self.denoisers}))
        return super().make_corruption(encoder)

    def _make_objective(self, denoiser: Denoiser) -> SpanCorruption:
        found = SpanCorruption(
            noise_density=denoiser.noise_density,
            suffix=denoiser.mean_span is None,
            mode=denoiser.mode,
            joined=self.joined,
            corruption_seed=self.corruption_seed,
        )
        if denoiser.mean_span is None:
            return found
        return found.model_copy(update={"mean_span": denoiser.mean_span})
