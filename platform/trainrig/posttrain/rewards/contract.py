"""What a reward is: completions in, a number or the reason for none out, one for each.

A part of a run file (`RewardPart`) opens to a `CompletionScorer`; `WeightedRewards` adds them. A
reward is a function of the completion and of its row: not of the batch that it is in, of the clock,
or of what was scored before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from pydantic import Field

from trainrig.config import Settings
from trainrig.config.absolute_paths import with_absolute_paths
from trainrig.tokens.chat.messages import Conversation


@dataclass(frozen=True)
class Completion:
    """What a model said to one prompt."""

    prompt: str
    text: str  # what was said, without the prompt and without the token that ends it
    ids: tuple[int, ...]  # of what was said, with the token that ends it
    finished: bool  # whether the model ended it: not cut by the limit of length
    row: Mapping[str, object]  # the row that the prompt is from, with its other columns
    chat: Conversation | None = None  # that `prompt` is a transcript of; None: it is one text


@dataclass(frozen=True)
class Fault:
    """Why a completion has no score."""

    # The reward raised; it did not return in time; it gave no finite number; the row has nothing to
    # score by; a model cannot read the completion; or a judge gave no verdict.
    kind: Literal["raised", "timed_out", "not_finite", "no_target", "unreadable", "no_verdict"]
    detail: str


Score = float | Fault


class CompletionScorer(Protocol):
    """What scores completions."""

    @property
    def name(self) -> str:
        """Under which metrics and reports show it."""
        ...

    def score(self, completions: Sequence[Completion]) -> Sequence[Score]:
        """The score of each of `completions`, or why it has none."""
        ...


class RewardPart(Settings):
    """One part of a reward, as a run file has it."""

    name: str = Field(default="", pattern=r"^\w+$")  # of the part in metrics
    weight: float = Field(default=1.0, allow_inf_nan=False)  # what the part is multiplied by
    # What a completion gets that could not be scored, before the weight; faults are counted.
    fault_score: float = Field(default=0.0, allow_inf_nan=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that every row of prompts must have."""
        return ()

    def hash_inputs(self) -> Mapping[str, str]:
        """Keys of what the score depends on beside these settings: contents of files, by field."""
        return {}

    def resolve_paths(self) -> Self:
        """The same for processes that run in other folders, and later: its paths are absolute, and
        of what is there now."""
        return with_absolute_paths(self)

    def open(self) -> CompletionScorer:
        """What scores. Raises ConfigError or DataError where it cannot."""
        raise NotImplementedError
