"""Penalty for completions that are close to the limit of length."""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from trainrig.posttrain.rewards.contract import Completion, RewardPart


class OverlongPenalty(RewardPart):
    """Penalty that falls from 0 to -1 over the last `margin` tokens before `longest`.

    It is 0 up to `longest - margin` tokens, falls linearly to -1 at `longest`, and stays -1 above.
    This is DAPO's soft overlong punishment (Yu et al. 2025, arXiv:2503.14476, equation 13).
    """

    kind: Literal["OverlongPenalty"] = "OverlongPenalty"
    name: str = "overlong"  # name of this reward in metrics
    longest: int = Field(ge=1)  # tokens at which the penalty reaches -1
    margin: int = Field(ge=1)  # tokens before `longest` over which the penalty grows

    @model_validator(mode="after")
    def _margin_fits(self) -> Self:
        if self.margin > self.longest:
            raise ValueError(
                f"margin ({self.margin}) must be at most longest ({self.longest}); lower it"
            )
        return self

    def open(self) -> Self:
        """Return this object, which is its own scorer and loads nothing."""
        return self

    def score(self, completions: Sequence[Completion]) -> list[float]:
        """Return a penalty from 0.0 down to -1.0 for each completion."""
        free = self.longest - self.margin
        over = [max(0, len(completion.ids) - free) for completion in completions]
        return [-min(1.0, tokens / self.margin) if tokens else 0.0 for tokens in over]
