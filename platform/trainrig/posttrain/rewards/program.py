"""A reward for programs that pass their tests."""

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
    """1 for a Python program that passes the tests of its row, 0 for another.

    Programs run where they can do nothing but compute, without files, network and processes; where
    the kernel cannot confine them, none is run. The tests run in another process, which decides.
    """

    kind: Literal["ProgramAnswer"] = "ProgramAnswer"
    name: str = "program"  # of the part in metrics
    column: str = "tests"  # of the row, that has the tests
    # Template of the program, over the row's columns and `completion`: the last fenced block of
    # what was said, all of it where there is none.
    program: str = "{{ completion }}\n"
    # Template of the tests, over the row's columns.
    tests: str = Field(default="{{ tests }}\n", min_length=1)
    seconds: float = Field(default=5.0, gt=0, allow_inf_nan=False)  # that a program may take
    memory_mib: int = Field(default=512, ge=64)  # address space that it may take

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
        """The one with the tests."""
        return (self.column,)

    def open(self) -> Self:
        """Itself. Raises ConfigError where programs cannot be confined."""
        check_confinement()
        return self

    def score(self, completions: Sequence[Completion]) -> list[Score]:
        """1.0 or 0.0 for each; a Fault where the row has no tests, or not what `program` names."""
        return [self._score(each) for each in completions]

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
