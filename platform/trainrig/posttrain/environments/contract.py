"""What an environment is: it hears what the model says, turn by turn, and answers.

Settings of a run file (`EnvironmentPart`) open to an `Environment`, which leads many episodes at
once, each of a row of prompts. What it answers follows what was said, and is not trained on. An
episode is a function of its row and of what was said in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from pydantic import Field

from trainrig.config import Settings
from trainrig.config.absolute_paths import with_absolute_paths
from trainrig.posttrain.rewards.contract import Fault


@dataclass(frozen=True)
class StepResult:
    """What an environment makes of one turn."""

    observation: str  # follows what was said
    reward: float  # of the turn; those of an episode are added up
    done: bool  # whether the episode ends with it


class Environment(Protocol):
    """What leads episodes, by their numbers."""

    def reset(self, episode: int, row: Mapping[str, object]) -> str | Fault:
        """Begin an episode; what follows the prompt, before the model speaks."""
        ...

    def step(self, episode: int, text: str) -> StepResult | Fault:
        """What comes of a turn in which the model said `text`; a Fault ends the episode."""
        ...

    def forget(self) -> None:
        """All episodes are over."""
        ...


class EnvironmentPart(Settings):
    """An environment, as a run file has it."""

    name: str = Field(default="environment", pattern=r"^\w+$")  # of its reward in metrics
    weight: float = Field(default=1.0, allow_inf_nan=False)  # what its reward is multiplied by
    # What an episode gets that went wrong, before the weight; faults are counted.
    fault_score: float = Field(default=0.0, allow_inf_nan=False)
    turns: int = Field(default=4, ge=1)  # of the model, at most

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end a turn of the model's; it also ends where the model ends its answer."""
        raise NotImplementedError

    def hash_inputs(self) -> Mapping[str, str]:
        """Keys of what it depends on beside these settings: contents of files, by field."""
        return {}

    def resolve_paths(self) -> Self:
        """The same for processes that run in other folders: its paths are absolute."""
        return with_absolute_paths(self)

    def open(self) -> Environment:
        """What leads episodes. Raises ConfigError where it cannot."""
        raise NotImplementedError
