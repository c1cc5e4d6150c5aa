"""A penalty for what comes near the limit of length."""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from trainrig.posttrain.rewards.contract import Completion, RewardPart


class OverlongPenalty(RewardPart):
    """0 up to `longest` less `margin` tokens, from there a line down to -1 at `longest`, and -1
    above: DAPO's soft punishment (Yu et al. 2025, arXiv:2503.14476, equation 13)."""

    kind: Literal["OverlongPenalty"] = "OverlongPenalty"
    name: str = "overlong"  # of the part in metrics
    longest: int = Field(ge=1)  # tokens from which on the penalty is whole
    margin: int = Field(ge=1)  # tokens before them over which it grows

    @model_validator(mode="after")
    def _margin_fits(self) -> Self:
        if self.margin > self.longest:
            raise ValueError(
                f"margin: {self.margin} is more than longest, {self.longest}; give a smaller one"
            )
        return self

    def open(self) -> Self:
        """Itself: there is nothing to load."""
        return self

    def score(self, completions: Sequence[Completion]) -> list[float]:
        """From 0.0 to -1.0 for each."""
        free = self.longest - self.margin
        over = [max(0, len(each.ids) - free) for each in completions]
        return [-min(1.0, tokens / self.margin) if tokens else 0.0 for tokens in over]
