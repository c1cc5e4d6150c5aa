"""Reward for programs that pass the tests of their row."""

import re
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator

from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.confined.run import check_confinement, run_confined
from trainrig.evaluate.tasks.templates import compile_template
from trainrig.posttrain.rewards.contract import Completion, Fault, RewardPart, Score

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
    program: str = "{{ completion }}\n"
    # Template of the tests. It may use the row's columns.
    tests: str = Field(default="{{ tests }}\n", min_length=1)
    seconds: float = Field(
        default=5.0, gt=0, allow_inf_nan=False
    )  # time limit of a program, in seconds
    memory_mib: int = Field(default=512, ge=64)  # limit of a program's address space, in MiB

    @field_validator("program", "tests")
    @classmethod
    def _is_a_template(cls, given: str, field: ValidationInfo) -> str:
        try:
            compile_template(given, str(field.field_name))
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return given

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
