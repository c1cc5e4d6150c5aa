"""Rewards by a rule: the right answer, a pattern, a program's tests, or the completion's length.

`Verifier` is the base class of rewards that compare an answer in the completion with an answer in
the row: exactly, as a number, or as a formula.
"""

import re
from abc import abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from trainrig.errors import DataError
from trainrig.evaluate.confined.run import check_confinement, run_confined
from trainrig.evaluate.tasks.answer_checks import (
    extract_answer,
    extract_formula,
    find_numbers,
    is_right,
)
from trainrig.evaluate.tasks.task_definition import ExactMatch, MathsMatch
from trainrig.evaluate.tasks.task_templates import Template, compile_template
from trainrig.posttrain.rewards.reward_contract import Completion, Fault, RewardPart, Score


def _check_pattern(given: str) -> str:
    try:
        re.compile(given)
    except re.error as error:
        raise ValueError(f"'{given}' is not a regular expression: {error}") from None
    return given


Pattern = Annotated[str, AfterValidator(_check_pattern)]
"""Text of a run file that must be a regular expression."""


class Verifier(RewardPart):
    """Reward of 1 for a right answer, 0 for a wrong answer or none."""

    # Column of the row with the right answer, or with a list of right answers.
    column: str = "answer"
    # Regular expression that finds the answer in the completion: its first group, or the whole
    # match if the expression has no group; None: the answer is the whole completion.
    extract: Pattern | None = None
    take: Literal["first", "last"] = "last"  # match of `extract` to use as the answer
    # Regular expression that finds the right answer in the column, such as '#### (.+)';
    # None: the whole value is the right answer.
    extract_target: Pattern | None = None

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

    @abstractmethod
    def is_right(self, given: str, target: str) -> bool:
        """Return whether the answer `given` equals the right answer `target`."""

    def _score(self, completion: Completion) -> Score:
        value = completion.row.get(self.column)
        values = value if isinstance(value, list | tuple) else [value]
        texts = [
            extract_answer(str(v), self.extract_target, "last") for v in values if v is not None
        ]
        targets = [text for text in texts if text]
        if not targets:
            return Fault("no_target", f"column '{self.column}' has no answer: {value!r:.60}")
        given = extract_answer(completion.text, self.extract, self.take)
        return float(given is not None and any(self.is_right(given, target) for target in targets))


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


class NumericAnswer(Verifier):
    """Reward of 1 if the answer is the right number: "1,234.0", "$1234" and "1234" are equal.

    If the answer has several numbers, the last counts, or the first with `take = "first"`.
    """

    kind: Literal["NumericAnswer"] = "NumericAnswer"
    name: str = "numeric"  # name of this reward in metrics
    # Largest difference from the right number.
    tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    def is_right(self, given: str, target: str) -> bool:
        """Return whether the number in `given` is within `tolerance` of the number in `target`."""
        given_numbers = find_numbers(given)
        target_numbers = find_numbers(target)
        if not given_numbers or not target_numbers:
            return False
        number = given_numbers[-1 if self.take == "last" else 0]
        return abs(number - target_numbers[-1]) <= Decimal(repr(self.tolerance))


class FormulaAnswer(Verifier):
    r"""Reward of 1 if the answer is the right LaTeX formula, else 0.

    The formula is read from `\boxed{}`, else from between dollar signs, else from the whole text.
    Both formulas are normalised as in evaluation: `\dfrac12` equals `\frac{1}{2}`, and `x=3` equals
    `3`. Formulas that differ after that are different, even if their values are equal.
    """

    kind: Literal["FormulaAnswer"] = "FormulaAnswer"
    name: str = "formula"  # name of this reward in metrics

    def is_right(self, given: str, target: str) -> bool:
        """Return whether `given` and `target` are the same formula after normalisation."""
        return is_right(MathsMatch(), given, extract_formula(target))


class PatternShape(RewardPart):
    """Reward of 1 if the completion matches a regular expression, else 0."""

    kind: Literal["PatternShape"] = "PatternShape"
    name: str = "pattern"  # name of this reward in metrics
    # Regular expression. A dot matches any character, newlines included.
    pattern: Pattern
    # Match the whole completion, without surrounding white space; false: match any part.
    whole: bool = True

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


_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


class ProgramAnswer(RewardPart):
    """Reward of 1 if the completion is a Python program that passes its row's tests, else 0.

    Programs run in a sandbox without files, network or child processes. On a kernel that cannot
    provide the sandbox, `open` raises ConfigError and no program runs. The tests run in a separate
    process, and only that process decides whether the program passed.
    """

    kind: Literal["ProgramAnswer"] = "ProgramAnswer"
    name: str = "program"  # name of this reward in metrics
    column: str = "tests"  # column of the row with the tests
    # Template of the program. It may use the row's columns and `completion`, which is the last
    # fenced code block of the completion, or the whole completion if there is no such block.
    program: Template = "{{ completion }}\n"
    # Template of the tests. It may use the row's columns.
    tests: Template = Field(default="{{ tests }}\n", min_length=1)
    # Time limit of a program, in seconds.
    seconds: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    memory_mib: int = Field(default=512, ge=64)  # limit of a program's address space, in MiB

    @property
    def columns(self) -> tuple[str, ...]:
        """Column with the tests."""
        return (self.column,)

    def open(self) -> Self:
        """Return this object. Raises ConfigError if this machine cannot sandbox programs."""
        check_confinement()
        return self

    def score(self, completions: Sequence[Completion]) -> list[Score]:
        """Return 1.0 or 0.0 for each completion.

        The score is a Fault if the row has no tests, or lacks a column that a template uses.
        """
        return [self._score(completion) for completion in completions]

    def _score(self, completion: Completion) -> Score:
        if not completion.row.get(self.column):
            return Fault("no_target", f"column '{self.column}' has no tests")
        blocks = _FENCED.findall(completion.text)
        said = blocks[-1] if blocks else completion.text
        try:
            where = f"reward '{self.name}': "
            make_program = compile_template(self.program, f"{where}program")
            make_tests = compile_template(self.tests, f"{where}tests")
            program = make_program({**completion.row, "completion": said}, "a row")
            tests = make_tests(completion.row, "a row")
        except DataError as error:
            return Fault("no_target", str(error))
        outcome = run_confined(program, tests, self.seconds, self.memory_mib)
        return float(outcome.verdict == "passed")


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
