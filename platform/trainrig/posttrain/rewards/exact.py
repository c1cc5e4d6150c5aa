"""Reward for completions whose answer equals the right answer exactly."""

from typing import Literal

from trainrig.evaluate.checks.answers import is_right
from trainrig.evaluate.checks.settings import ExactMatch
from trainrig.posttrain.rewards.verifier import Verifier


class ExactAnswer(Verifier):
    """Reward of 1 if the answer equals the right answer, without surrounding white space."""

    kind: Literal["ExactAnswer"] = "ExactAnswer"
    name: str = "exact"  # name of this reward in metrics
    ignore_case: bool = False  # treat "Paris" and "paris" as equal
    ignore_punctuation: bool = False  # treat "Paris." and "Paris" as equal

    def is_right(self, given: str, target: str) -> bool:
        """Return whether `given` and `target` are the same text under these settings."""
        check = ExactMatch(ignore_case=self.ignore_case, ignore_punctuation=self.ignore_punctuation)
        return is_right(check, given, target)
