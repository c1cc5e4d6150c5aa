"""Reward that a user's Python function computes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trainrig.posttrain.rewards.contract import Completion, Fault, RewardPart, Score
from trainrig.posttrain.rewards.user_code import UserCode, UserCodeFault, UserCodeSettings


class PythonFunction(UserCodeSettings, RewardPart):
    """Reward that is the number returned by your function `reward(prompt, completion, row)`.

    `prompt` and `completion` are strings; `row` is a dict of the prompt's row. The function runs in
    a separate process and is called once for each completion.
    """

    kind: Literal["PythonFunction"] = "PythonFunction"
    name: str = "function"  # name of this reward in metrics
    function: str = "reward"  # name of the function in `file` or `module`
    needs: tuple[str, ...] = ()  # columns that every row of the prompt files must have

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the function needs."""
        return self.needs

    def hash_inputs(self) -> Mapping[str, str]:
        """Return the hash of the function's source."""
        return {"source": self.hash_source()}

    def open(self) -> "FunctionScorer":
        """Return the scorer that calls the function.

        Raises ConfigError if the function cannot be loaded.
        """
        return FunctionScorer(self.name, UserCode(self, self.function).check())


@dataclass(frozen=True)
class FunctionScorer:
    """Scorer that calls a user's function once for each completion."""

    name: str
    code: UserCode

    def score(self, completions: Sequence[Completion]) -> list[Score]:
        """Return the function's result for each completion.

        The score is a Fault if the function raises, takes too long, or returns no number.
        """
        return [self._score(completion) for completion in completions]

    def _score(self, completion: Completion) -> Score:
        try:
            given = self.code.ask("call", completion.prompt, completion.text, dict(completion.row))
        except UserCodeFault as fault:
            return Fault(fault.kind, fault.detail)
        if not isinstance(given, int | float):  # bool passes: True is 1.0
            return Fault("raised", f"the function returned {given!r:.60}, which is not a number")
        return float(given)
