"""A reward that a user wrote in Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trainrig.posttrain.rewards.contract import Completion, Fault, RewardPart, Score
from trainrig.posttrain.rewards.user_code import UserCode, UserCodeFault, UserCodeSettings


class PythonFunction(UserCodeSettings, RewardPart):
    """What a function of your own gives: `reward(prompt, completion, row)`, a number.

    `prompt` and `completion` are texts, `row` a dict of the row that the prompt is from. It runs in
    a process of its own, by itself for each completion.
    """

    kind: Literal["PythonFunction"] = "PythonFunction"
    name: str = "function"  # of the part in metrics
    function: str = "reward"  # its name there
    needs: tuple[str, ...] = ()  # columns that every row of prompts must have

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that the function needs."""
        return self.needs

    def hash_inputs(self) -> Mapping[str, str]:
        """The sum of its source."""
        return {"source": self.hash_source()}

    def open(self) -> "FunctionScorer":
        """What calls it. Raises ConfigError for one that cannot be loaded."""
        return FunctionScorer(self.name, UserCode(self, self.function).check())


@dataclass(frozen=True)
class FunctionScorer:
    """Calls a function for each completion."""

    name: str
    code: UserCode

    def score(self, completions: Sequence[Completion]) -> list[Score]:
        """What it gives for each; a Fault where it raises, takes too long, or gives no number."""
        return [self._score(each) for each in completions]

    def _score(self, completion: Completion) -> Score:
        try:
            given = self.code.ask("call", completion.prompt, completion.text, dict(completion.row))
        except UserCodeFault as fault:
            return Fault(fault.kind, fault.detail)
        if not isinstance(given, int | float):  # True is 1
            return Fault("raised", f"gave {given!r:.60}, no number")
        return float(given)
