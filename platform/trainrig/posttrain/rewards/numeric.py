"""Reward for completions whose answer is the right number."""

from decimal import Decimal
from typing import Literal

from pydantic import Field

from trainrig.evaluate.checks.answers import find_numbers
from trainrig.posttrain.rewards.verifier import Verifier


class NumericAnswer(Verifier):
    """Reward of 1 if the answer is the right number: "1,234.0", "$1234" and "1234" are equal.

    If the answer has several numbers, the last counts, or the first with `take = "first"`.
    """

    kind: Literal["NumericAnswer"] = "NumericAnswer"
    name: str = "numeric"  # name of this reward in metrics
    tolerance: float = Field(
        default=0.0, ge=0, allow_inf_nan=False
    )  # largest difference from the right number

    def is_right(self, given: str, target: str) -> bool:
        """Return whether the number in `given` is within `tolerance` of the number in `target`."""
        given_numbers = find_numbers(given)
        target_numbers = find_numbers(target)
        if not given_numbers or not target_numbers:
            return False
        number = given_numbers[-1 if self.take == "last" else 0]
        return abs(number - target_numbers[-1]) <= Decimal(repr(self.tolerance))
