"""Decisions from scores: whether a run ends early, and which checkpoint is its best.

They are pure functions of the scores that count, so every rank and every later reader decides
alike.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainrig.errors import ConfigError
from trainrig.train.evaluations.settings import NamedScore, StopIf


@dataclass(frozen=True)
class CheckpointScore:
    """One score of one task."""

    value: float
    error: float | None  # standard error
    higher_is_better: bool

    def is_better_than(self, other: "CheckpointScore") -> bool:
        """Return whether this score is better than `other`, not equal; NaN is the worst."""
        if math.isnan(other.value):
            return not math.isnan(self.value)
        return self.value > other.value if self.higher_is_better else self.value < other.value


@dataclass(frozen=True)
class ScoredCheckpoint:
    """Scores of one checkpoint by one evaluation."""

    evaluation: str
    step: int
    attempt: int  # the attempt that saved the checkpoint
    scores: Mapping[str, CheckpointScore]  # keys: TASK/METRIC, and TASK for its headline score
    problem: str | None = None  # why there are no scores

    def find(self, named: NamedScore) -> CheckpointScore:
        """Return the score that `named` selects. Raise ConfigError if it does not exist."""
        if named.score not in self.scores:
            there = ", ".join(sorted(self.scores))
            raise ConfigError(
                f"training: the evaluation '{self.evaluation}' has no score '{named.score}'; it "
                f"has {there}"
            )
        return self.scores[named.score]


def find_stop_reason(rule: StopIf, scored: Sequence[ScoredCheckpoint]) -> str | None:
    """Return why the run ends by `rule`, in words; None if it continues.

    `scored`: in order of steps.
    """
    scores = [checkpoint.find(rule) for checkpoint in scored]
    if len(scores) < rule.patience:
        return None
    newest = len(scores) - rule.patience
    if not all(_holds(rule, scores, at) for at in range(newest, len(scores))):
        return None
    shown = ", ".join(f"{score.value:.4g}" for score in scores[newest:])
    what = "no better than before" if rule.value is None else f"{rule.comparison} {rule.value:g}"
    last = scored[-1].step
    return f"{rule.evaluation}: {rule.score} was {shown} up to step {last}, {what}"


def _holds(rule: StopIf, scores: Sequence[CheckpointScore], at: int) -> bool:
    score = scores[at]
    if rule.value is None:
        return at > 0 and not all(score.is_better_than(earlier) for earlier in scores[:at])
    return score.value < rule.value if rule.comparison == "below" else score.value > rule.value


def choose_best(named: NamedScore, scored: Sequence[ScoredCheckpoint]) -> ScoredCheckpoint | None:
    """Return the checkpoint with the best score, the earliest of equal ones; None if none has."""
    best: ScoredCheckpoint | None = None
    for checkpoint in scored:
        score = checkpoint.find(named)
        if math.isnan(score.value):
            continue
        if best is None or score.is_better_than(best.find(named)):
            best = checkpoint
    return best
