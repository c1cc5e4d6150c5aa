"""What verifiers share: an answer is found in a completion and compared with one in its row."""

import re
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import field_validator

from trainrig.evaluate.checks.answers import extract_answer
from trainrig.posttrain.rewards.contract import Completion, Fault, RewardPart, Score


class Verifier(RewardPart):
    """1 for a right answer, 0 for a wrong one or none."""

    column: str = "answer"  # of the row, that has the right answer, or a list of right answers
    # Regular expression that finds the answer in what was said: its first group, else all that
    # matches. None: all of the text.
    extract: str | None = None
    take: Literal["first", "last"] = "last"  # which match of `extract` is the answer
    # Regular expression that finds the right answer in the column, such as '#### (.+)'. None: all.
    extract_target: str | None = None

    @field_validator("extract", "extract_target")
    @classmethod
    def _compiles(cls, given: str | None) -> str | None:
        return given if given is None else check_pattern(given)

    @property
    def columns(self) -> tuple[str, ...]:
        """The one with the answer."""
        return (self.column,)

    def open(self) -> Self:
        """Itself: there is nothing to load."""
        return self

    def score(self, completions: Sequence[Completion]) -> list[Score]:
        """1.0 or 0.0 for each; a Fault where the row has no right answer."""
        return [self._score(each) for each in completions]

    def is_right(self, given: str, target: str) -> bool:
        """Whether `given` is the answer `target`."""
        raise NotImplementedError

    def _score(self, completion: Completion) -> Score:
        value = completion.row.get(self.column)
        values = value if isinstance(value, list | tuple) else [value]
        texts = [
            extract_answer(_as_text(v), self.extract_target, "last")
            for v in values
            if v is not None
        ]
        targets = [text for text in texts if text]
        if not targets:
            return Fault("no_target", f"column '{self.column}' has no answer: {value!r:.60}")
        given = extract_answer(completion.text, self.extract, self.take)
        return float(given is not None and any(self.is_right(given, each) for each in targets))


def check_pattern(given: str) -> str:
    """`given`, if it is a regular expression. Raises ValueError."""
    try:
        re.compile(given)
    except re.error as error:
        raise ValueError(f"'{given}' is no regular expression: {error}") from None
    return given


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else str(value)
