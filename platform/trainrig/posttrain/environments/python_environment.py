"""Environment that a user wrote as a Python class."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainrig.posttrain.environments.contract import EnvironmentPart, StepResult
from trainrig.posttrain.rewards.contract import Fault
from trainrig.posttrain.rewards.user_code import UserCode, UserCodeFault, UserCodeSettings


class PythonEnvironment(UserCodeSettings, EnvironmentPart):
    """Environment that is a Python class of yours, with the methods `reset` and `step`.

    `reset(row)` returns the text to append to the prompt, or None. `step(text)` returns an
    observation, a reward, and whether the episode is done.

    One object is created for each completion, all in one separate process. If that process is
    killed, the other episodes are restored by repeating their calls.
    """

    kind: Literal["PythonEnvironment"] = "PythonEnvironment"
    environment: str = "Environment"  # name of the class in `file` or `module`
    stop: tuple[str, ...] = ()  # texts that end a turn of the model, such as "</call>"

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end a turn of the model, from the run file."""
        return self.stop

    def hash_inputs(self) -> Mapping[str, str]:
        """Return the hash of the class's source."""
        return {"source": self.hash_source()}

    def open(self) -> "PythonEpisodes":
        """Return the environment that runs episodes of the class.

        Raises ConfigError if the class cannot be loaded.
        """
        return PythonEpisodes(UserCode(self, self.environment).check())


@dataclass
class _Episode:
    row: Mapping[str, object]
    said: list[str]
    process: int  # count of process starts when this episode was last restored


@dataclass
class PythonEpisodes:
    """Environment that runs episodes of a user's class in a separate process."""

    code: UserCode
    _episodes: dict[int, _Episode] = field(default_factory=dict)

    def reset(self, episode: int, row: Mapping[str, object]) -> str | Fault:
        """Start an episode and return the text to append to the prompt, or a Fault."""
        try:
            given = self.code.ask("reset", dict(row), episode=episode)
        except UserCodeFault as fault:
            return Fault(fault.kind, fault.detail)
        if not isinstance(given, str | None):
            return Fault("raised", f"reset returned {given!r:.60}, which is not text")
        self._episodes[episode] = _Episode(row, [], self.code.starts)
        return given or ""

    def step(self, episode: int, text: str) -> StepResult | Fault:
        """Return the answer to a turn in which the model wrote `text`, or a Fault."""
        try:
            known = self._bring_back(episode)
            given = self.code.ask("step", text, episode=episode)
        except UserCodeFault as fault:
            return Fault(fault.kind, fault.detail)
        known.said.append(text)
        return _read_result(given)

    def forget(self) -> None:
        """Drop the state of all episodes, here and in the process."""
        self._episodes.clear()
        try:
            self.code.ask("forget")
        except UserCodeFault:  # the process has ended; the next call starts a new one
            self.code.close()

    def _bring_back(self, episode: int) -> _Episode:
        """Return the episode, after replaying it if the process has restarted since."""
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
    return Fault("raised", f"step returned {given!r:.60}, not (observation, reward, done)")
