"""A reward for the right words."""

from typing import Literal

from trainrig.evaluate.checks.answers import is_right
from trainrig.evaluate.checks.settings import ExactMatch
from trainrig.posttrain.rewards.verifier import Verifier


class ExactAnswer(Verifier):
    """1 for the same text as the right answer, but for white space at both ends."""

    kind: Literal["ExactAnswer"] = "ExactAnswer"
    name: str = "exact"  # of the part in metrics
    ignore_case: bool = False  # whether "Paris" is "paris"
    ignore_punctuation: bool = False  # whether "Paris." is "Paris"

    def is_right(self, given: str, target: str) -> bool:
        """Whether both are one text."""
        check = ExactMatch(ignore_case=self.ignore_case, ignore_punctuation=self.ignore_punctuation)
        return is_right(check, given, target)
