"""A reward for the right number."""

from decimal import Decimal
from typing import Literal

from pydantic import Field

from trainrig.evaluate.checks.answers import find_numbers
from trainrig.posttrain.rewards.verifier import Verifier


class NumericAnswer(Verifier):
    """1 for the right number: "1,234.0", "$1234" and "1234" are one.

    Of an answer with several numbers the last counts, or the first with `take = "first"`.
    """

    kind: Literal["NumericAnswer"] = "NumericAnswer"
    name: str = "numeric"  # of the part in metrics
    tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # largest difference

    def is_right(self, given: str, target: str) -> bool:
        """Whether the number of `given` is that of `target`."""
        mine, wanted = find_numbers(given), find_numbers(target)
        if not mine or not wanted:
            return False
        number = mine[-1 if self.take == "last" else 0]
        return abs(number - wanted[-1]) <= Decimal(repr(self.tolerance))
