"""Environments, which answer the model turn by turn: a calculator, or a user's Python class.

`EnvironmentPart` holds the settings of a run file; its `open` returns an `Environment`, which runs
many episodes at once, each for one row of the prompt files. Its observations are appended to the
completion, and are not trained on. An episode must depend on its row and the model's text alone.
"""

import ast
import math
import operator
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, Protocol, Self

from pydantic import Field

from trainrig.config import Settings, with_absolute_paths
from trainrig.posttrain.rewards.reward_contract import Fault
from trainrig.posttrain.rewards.user_code import UserCode, UserCodeFault, UserCodeSettings


@dataclass(frozen=True)
class StepResult:
    """Answer of an environment to one turn of the model."""

    observation: str  # text to append after the model's turn
    reward: float  # reward of this turn; an episode's reward is the sum over its turns
    done: bool  # True if the episode ends with this turn


class Environment(Protocol):
    """Interface of an opened environment, which runs episodes identified by numbers."""

    def reset(self, episode: int, row: Mapping[str, object]) -> str | Fault:
        """Start an episode and return the text to append to the prompt, which may be empty."""
        ...

    def step(self, episode: int, text: str) -> StepResult | Fault:
        """Return the answer to a turn in which the model wrote `text`; a Fault ends the episode."""
        ...

    def forget(self) -> None:
        """Drop the state of all episodes, which have ended."""
        ...


class EnvironmentPart(Settings):
    """Settings of `[environment]` in a run file."""

    # Name of the environment's reward in metrics.
    name: str = Field(default="environment", pattern=r"^\w+$")
    # Factor of the environment's reward in the weighted sum.
    weight: float = Field(default=1.0, allow_inf_nan=False)
    # Reward, before the weight, of an episode that failed. The metrics count such faults.
    fault_score: float = Field(default=0.0, allow_inf_nan=False)
    turns: int = Field(default=4, ge=1)  # largest number of turns of the model

    @property
    @abstractmethod
    def stops(self) -> tuple[str, ...]:
        """Texts that end a turn of the model; the end of its answer ends a turn too."""

    def hash_inputs(self) -> Mapping[str, str]:
        """Return content keys of the files that the environment depends on, keyed by field."""
        return {}

    def resolve_paths(self) -> Self:
        """Return a copy with absolute paths, for processes that run in other folders."""
        return with_absolute_paths(self)

    @abstractmethod
    def open(self) -> Environment:
        """Return the environment that runs episodes. Raises ConfigError if it cannot be set up."""


LONGEST = 200  # longest expression, in characters
LARGEST = 10**15  # limit of every intermediate result, so that no expression takes long
DIGITS = 6  # decimal places of results that are no integer

_OPERATIONS: dict[type[ast.AST], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Calculator(EnvironmentPart):
    """Calculator for expressions between `begin` and `end`, such as <<48/2>>.

    The model writes the expression, the calculator appends the result, and the model continues.
    The operators + - * / and brackets are exact. The calculator gives no reward: set `rewards` to
    score the whole completion.
    """

    kind: Literal["Calculator"] = "Calculator"
    begin: str = Field(default="<<", min_length=1)  # text before an expression
    # Text after an expression, which ends the model's turn.
    end: str = Field(default=">>", min_length=1)

    @property
    def stops(self) -> tuple[str, ...]:
        """The text after an expression, which ends the model's turn."""
        return (self.end,)

    def open(self) -> "Calculator":
        """Return this object, which loads nothing and has no state per episode."""
        return self

    def reset(self, episode: int, row: Mapping[str, object]) -> str:
        """Return an empty text: the calculator adds nothing to the prompt."""
        return ""

    def step(self, episode: int, text: str) -> StepResult:
        """Return the result after an equals sign, such as "=24", or "=?" for an invalid expression.

        The observation is empty if `text` does not contain `begin`.
        """
        _, asked, written = text.rpartition(self.begin)
        return StepResult(f"={evaluate_sum(written) or '?'}" if asked else "", 0.0, done=False)

    def forget(self) -> None:
        """Do nothing: there is no state per episode."""


def evaluate_sum(written: str) -> str | None:
    """Return the value of an arithmetic expression in decimals.

    Returns None if the expression is invalid, too long, or a number in it is too large.
    """
    if len(written) > LONGEST:
        return None
    try:
        value = _evaluate(ast.parse(written.replace(",", "").strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, MemoryError, RecursionError):
        return None
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.{DIGITS}f}".rstrip("0").rstrip(".")


def _evaluate(node: ast.AST) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            value = Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = -_evaluate(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            value = _evaluate(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            value = _OPERATIONS[type(op)](_evaluate(left), _evaluate(right))
        case _:
            raise ValueError("not a sum")
    if abs(value) > LARGEST:
        raise ValueError("too large")
    return value


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
