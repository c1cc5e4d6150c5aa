"""Interfaces of environments, which answer the model turn by turn.

`EnvironmentPart` holds the settings of a run file; its `open` returns an `Environment`, which runs
many episodes at once, each for one row of the prompt files. Its observations are appended to the
completion, and are not trained on. An episode must depend on its row and the model's text alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from pydantic import Field

from trainrig.config import Settings, with_absolute_paths
from trainrig.posttrain.rewards.contract import Fault


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

    name: str = Field(
        default="environment", pattern=r"^\w+$"
    )  # name of the environment's reward in metrics
    # Factor of the environment's reward in the weighted sum.
    weight: float = Field(default=1.0, allow_inf_nan=False)
    # Reward, before the weight, of an episode that failed. The metrics count such faults.
    fault_score: float = Field(default=0.0, allow_inf_nan=False)
    turns: int = Field(default=4, ge=1)  # largest number of turns of the model

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end a turn of the model; the end of its answer ends a turn too."""
        raise NotImplementedError

    def hash_inputs(self) -> Mapping[str, str]:
        """Return content keys of the files that the environment depends on, keyed by field."""
        return {}

    def resolve_paths(self) -> Self:
        """Return a copy with absolute paths, for processes that run in other folders."""
        return with_absolute_paths(self)

    def open(self) -> Environment:
        """Return the environment that runs episodes. Raises ConfigError if it cannot be set up."""
        raise NotImplementedError
