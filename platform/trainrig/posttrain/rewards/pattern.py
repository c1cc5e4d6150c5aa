"""Reward for completions that match a regular expression."""

import re
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import field_validator

from trainrig.posttrain.rewards.contract import Completion, RewardPart
from trainrig.posttrain.rewards.verifier import check_pattern


class PatternShape(RewardPart):
    """Reward of 1 if the completion matches a regular expression, else 0."""

    kind: Literal["PatternShape"] = "PatternShape"
    name: str = "pattern"  # name of this reward in metrics
    # Regular expression. A dot matches any character, newlines included.
    pattern: str
    # Match the whole completion, without surrounding white space; false: match any part.
    whole: bool = True

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, given: str) -> str:
        return check_pattern(given)

    def open(self) -> Self:
        """Return this object, which is its own scorer and loads nothing."""
        return self

    def score(self, completions: Sequence[Completion]) -> list[float]:
        """Return 1.0 or 0.0 for each completion."""
        find = re.fullmatch if self.whole else re.search
        return [
            float(find(self.pattern, completion.text.strip(), re.DOTALL) is not None)
            for completion in completions
        ]
