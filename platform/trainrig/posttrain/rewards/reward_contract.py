"""Interfaces of rewards: settings, scorers, and the score or fault of each completion.

`RewardPart` holds the settings of one reward in a run file; its `open` returns a
`CompletionScorer`. `WeightedRewards` adds the scores of all parts. A reward must depend on the
completion and its row alone: not on the rest of the batch, the time, or earlier calls.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from pydantic import Field

from trainrig.config import Settings, with_absolute_paths
from trainrig.tokens.chat.chat_messages import Conversation


@dataclass(frozen=True)
class Completion:
    """Completion that a model sampled for one prompt."""

    prompt: str
    text: str  # without the prompt and without the end token
    ids: tuple[int, ...]  # token ids of the completion, with the end token
    finished: bool  # False if the limit of length cut it
    row: Mapping[str, object]  # row of the prompt file, with all its columns
    chat: Conversation | None = None  # conversation behind `prompt`; None if it is one text


@dataclass(frozen=True)
class Fault:
    """Reason why a completion has no score."""

    # raised: the reward raised an exception. timed_out: it did not return in time. not_finite: it
    # returned NaN or infinity. no_target: the row lacks the value to compare with. unreadable: a
    # model cannot read the completion. no_verdict: the judge's answer has no valid verdict.
    kind: Literal["raised", "timed_out", "not_finite", "no_target", "unreadable", "no_verdict"]
    detail: str


Score = float | Fault


class CompletionScorer(Protocol):
    """Interface of an opened reward that scores completions."""

    @property
    def name(self) -> str:
        """Name of the reward in metrics and reports."""
        ...

    def score(self, completions: Sequence[Completion]) -> Sequence[Score]:
        """Return one score, or the Fault that prevented it, for each completion, in order."""
        ...


class RewardPart(Settings):
    """Settings of one `[[rewards]]` entry in a run file."""

    name: str = Field(default="", pattern=r"^\w+$")  # name of this reward in metrics
    # Factor of this reward in the weighted sum.
    weight: float = Field(default=1.0, allow_inf_nan=False)
    # Score, before the weight, of a completion that this reward could not score. The metrics count
    # such faults.
    fault_score: float = Field(default=0.0, allow_inf_nan=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that every row of the prompt files must have."""
        return ()

    def hash_inputs(self) -> Mapping[str, str]:
        """Return content keys of the files that the score depends on, keyed by settings field."""
        return {}

    def resolve_paths(self) -> Self:
        """Return a copy with absolute paths, for processes that run in other folders.

        A path that means "the newest checkpoint" is resolved to the checkpoint that is newest now.
        """
        return with_absolute_paths(self)

    @abstractmethod
    def open(self) -> CompletionScorer:
        """Return the scorer of this reward.

        Raises ConfigError or DataError if the reward cannot be set up.
        """
