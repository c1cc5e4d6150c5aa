"""UL2: a mixture of denoisers, from short spans to the whole end of a text, each with its mode.

Tay et al. 2022, "UL2: Unifying Language Learning Paradigms", arXiv:2205.05131, section 3 and table
1. A denoiser leaves a share of a text out, in spans of some mean length: regular ones (R) little in
short spans, as T5's; extreme ones (X) much, or in long spans; the sequential one (S) the text's
end. A token before the text names the mode, so that a model can be asked for one later. Each sample
is of one denoiser, drawn by its number: see mixture.py.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.objectives.denoising.mixture import DealtObjectives, DealtRows, NamedObjective
from trainrig.objectives.denoising.needed_tokens import find_modes
from trainrig.objectives.denoising.span_corruption import Mode, SpanCorruption
from trainrig.tokens.encoding.encode import Encoder


class Denoiser(Settings):
    """One way to corrupt texts."""

    mode: Mode  # which mode's token stands before its texts
    noise_density: float = Field(gt=0, lt=1)  # share of tokens that are left out
    # Tokens of a span, on average; None: one span, the text's end.
    mean_span: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    # Of all samples, its share is this over the sum of all weights.
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    @property
    def called(self) -> str:
        """Its name in metrics, as `R-0.15-3`: mode, density and mean span."""
        span = "end" if self.mean_span is None else f"{self.mean_span:g}"
        return f"{self.mode}-{self.noise_density:g}-{span}"


# The paper's table 1, all as likely.
DENOISERS = (
    Denoiser(mode="R", noise_density=0.15, mean_span=3.0),
    Denoiser(mode="R", noise_density=0.15, mean_span=8.0),
    Denoiser(mode="S", noise_density=0.25),
    Denoiser(mode="X", noise_density=0.5, mean_span=3.0),
    Denoiser(mode="X", noise_density=0.5, mean_span=8.0),
    Denoiser(mode="X", noise_density=0.15, mean_span=64.0),
    Denoiser(mode="X", noise_density=0.5, mean_span=64.0),
)


class UL2(DealtObjectives):
    """Cross-entropy of what denoisers of several kinds left out of texts, each sample of one of
    them, a mean over all targets of the global batch."""

    kind: Literal["UL2"] = "UL2"  # type: ignore[assignment]  # what tells the two apart
    # Ways to corrupt texts, with the share of each; the seven of the paper unless given.
    denoisers: tuple[Denoiser, ...] = Field(default=DENOISERS, min_length=2)
    # Whether text and spans stand in one row, for a decoder that reads the text as a prefix;
    # without, they are for an encoder and a decoder.
    joined: bool = False
    corruption_seed: int = 0  # random seed of what is left out

    @model_validator(mode="after")
    def _check_denoisers(self) -> Self:
        name, count = Counter(each.called for each in self.denoisers).most_common(1)[0]
        if count > 1:
            raise ValueError(f"denoisers: {count} are {name}; give one of them more weight")
        return self

    def list_named(self) -> tuple[NamedObjective, ...]:
        """The denoisers."""
        return tuple(
            NamedObjective(each.called, each.weight, self._make_objective(each))
            for each in self.denoisers
        )

    def make_corruption(self, encoder: Encoder) -> DealtRows:
        """What deals rows to denoisers. Raises DataError without a mode's token."""
        find_modes(encoder, self.kind, sorted({each.mode for each in self.denoisers}))
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
