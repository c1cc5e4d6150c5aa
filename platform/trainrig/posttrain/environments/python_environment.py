"""An environment that a user wrote in Python."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainrig.posttrain.environments.contract import EnvironmentPart, StepResult
from trainrig.posttrain.rewards.contract import Fault
from trainrig.posttrain.rewards.user_code import UserCode, UserCodeFault, UserCodeSettings


class PythonEnvironment(UserCodeSettings, EnvironmentPart):
    """A class of your own: `reset(row)` gives what follows the prompt, or nothing, `step(text)` an
    observation, a reward, and whether the episode is done.

    One is made for each completion, in a process of its own. Where that has to be ended, the other
    episodes are brought back by the same calls.
    """

    kind: Literal["PythonEnvironment"] = "PythonEnvironment"
    environment: str = "Environment"  # the name of the class there
    stop: tuple[str, ...] = ()  # texts that end a turn of the model's, such as "</call>"

    @property
    def stops(self) -> tuple[str, ...]:
        """As the run file has them."""
        return self.stop

    def hash_inputs(self) -> Mapping[str, str]:
        """The sum of its source."""
        return {"source": self.hash_source()}

    def open(self) -> "PythonEpisodes":
        """What leads episodes. Raises ConfigError for a class that cannot be loaded."""
        return PythonEpisodes(UserCode(self, self.environment).check())


@dataclass
class _Episode:
    row: Mapping[str, object]
    said: list[str]
    process: int  # the start of the process that knows it


@dataclass
class PythonEpisodes:
    """Leads episodes of a user's class."""

    code: UserCode
    _episodes: dict[int, _Episode] = field(default_factory=dict)

    def reset(self, episode: int, row: Mapping[str, object]) -> str | Fault:
        """See Environment."""
        try:
            given = self.code.ask("reset", dict(row), episode=episode)
        except UserCodeFault as fault:
            return Fault(fault.kind, fault.detail)
        if not isinstance(given, str | None):
            return Fault("raised", f"reset gave {given!r:.60}, no text")
        self._episodes[episode] = _Episode(row, [], self.code.starts)
        return given or ""

    def step(self, episode: int, text: str) -> StepResult | Fault:
        """See Environment."""
        try:
            known = self._bring_back(episode)
            given = self.code.ask("step", text, episode=episode)
        except UserCodeFault as fault:
            return Fault(fault.kind, fault.detail)
        known.said.append(text)
        return _read_result(given)

    def forget(self) -> None:
        """See Environment."""
        self._episodes.clear()
        try:
            self.code.ask("forget")
        except UserCodeFault:  # its process has ended, and will be started again
            self.code.close()

    def _bring_back(self, episode: int) -> _Episode:
        """The episode, known to the process that runs."""
        known = self._episodes[episode]
        if not self.code.running or known.process != self.code.starts:
            self.code.ask("reset", dict(known.row), episode=episode)
            for text in known.said:
                self.code.ask("step", text, episode=episode)
            known.process = self.code.starts
        return known


def _read_result(given: Any) -> StepResult | Fault:
    match given:
        case [str() as observation, int() | float() as reward, bool() as done]:
            if math.isfinite(reward):
                return StepResult(observation, float(reward), done)
            return Fault("not_finite", f"the reward of a step is {reward}")
    return Fault("raised", f"step gave {given!r:.60}, no (observation, reward, done)")
