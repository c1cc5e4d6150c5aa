"""A reward for the form of what is said."""

import re
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import field_validator

from trainrig.posttrain.rewards.contract import Completion, RewardPart
from trainrig.posttrain.rewards.verifier import check_pattern


class PatternShape(RewardPart):
    """1 for a completion that matches a regular expression, 0 for another."""

    kind: Literal["PatternShape"] = "PatternShape"
    name: str = "pattern"  # of the part in metrics
    # Regular expression, in which a dot is any character, a newline too.
    pattern: str
    whole: bool = True  # whether all of the completion has to match, but for white space around it

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, given: str) -> str:
        return check_pattern(given)

    def open(self) -> Self:
        """Itself: there is nothing to load."""
        return self

    def score(self, completions: Sequence[Completion]) -> list[float]:
        """1.0 or 0.0 for each."""
        find = re.fullmatch if self.whole else re.search
        return [
            float(find(self.pattern, each.text.strip(), re.DOTALL) is not None)
            for each in completions
        ]
