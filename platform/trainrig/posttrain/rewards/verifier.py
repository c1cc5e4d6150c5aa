"""Base class of rewards that compare an answer in the completion with an answer in the row."""

import re
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import field_validator

from trainrig.evaluate.checks.answers import extract_answer
from trainrig.posttrain.rewards.contract import Completion, Fault, RewardPart, Score


class Verifier(RewardPart):
    """Reward of 1 for a right answer, 0 for a wrong answer or none."""

    # Column of the row with the right answer, or with a list of right answers.
    column: str = "answer"
    # Regular expression that finds the answer in the completion: its first group, or the whole
    # match if the expression has no group; None: the answer is the whole completion.
    extract: str | None = None
    take: Literal["first", "last"] = "last"  # match of `extract` to use as the answer
    # Regular expression that finds the right answer in the column, such as '#### (.+)';
    # None: the whole value is the right answer.
    extract_target: str | None = None

    @field_validator("extract", "extract_target")
    @classmethod
    def _compiles(cls, given: str | None) -> str | None:
        return given if given is None else check_pattern(given)

    @property
    def columns(self) -> tuple[str, ...]:
        """Column with the right answer."""
        return (self.column,)

    def open(self) -> Self:
        """Return this object, which is its own scorer and loads nothing."""
        return self

    def score(self, completions: Sequence[Completion]) -> list[Score]:
        """Return 1.0 or 0.0 for each completion, or a Fault if its row has no right answer."""
        return [self._score(completion) for completion in completions]

    def is_right(self, given: str, target: str) -> bool:
        """Return whether the answer `given` equals the right answer `target`."""
        raise NotImplementedError

    def _score(self, completion: Completion) -> Score:
        value = completion.row.get(self.column)
        values = value if isinstance(value, list | tuple) else [value]
        texts = [
            extract_answer(_format_value(v), self.extract_target, "last")
            for v in values
            if v is not None
        ]
        targets = [text for text in texts if text]
        if not targets:
            return Fault("no_target", f"column '{self.column}' has no answer: {value!r:.60}")
        given = extract_answer(completion.text, self.extract, self.take)
        return float(given is not None and any(self.is_right(given, target) for target in targets))


def check_pattern(given: str) -> str:
    """Return `given` unchanged. Raises ValueError if it is no valid regular expression."""
    try:
        re.compile(given)
    except re.error as error:
        raise ValueError(f"'{given}' is not a regular expression: {error}") from None
    return given


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else str(value)
