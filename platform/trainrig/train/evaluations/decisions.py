"""What follows from scores: whether the run ends, and which checkpoint is its best.

Pure functions of the scores that count, so every rank and every later reader decides alike.
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
        """Whether it is better; not by being equal, nor by being no number."""
        if math.isnan(other.value):
            return not math.isnan(self.value)
        return self.value > other.value if self.higher_is_better else self.value < other.value


@dataclass(frozen=True)
class ScoredCheckpoint:
    """The scores of one checkpoint by one evaluation."""

    evaluation: str
    step: int
    attempt: int  # that saved the checkpoint
    scores: Mapping[str, CheckpointScore]  # by TASK/METRIC, and each task's headline by TASK
    problem: str | None = None  # why there are none, in words

    def find(self, named: NamedScore) -> CheckpointScore:
        """The score that `named` means. Raises ConfigError if there is no such one."""
        if named.score not in self.scores:
            there = ", ".join(sorted(self.scores))
            raise ConfigError(
                f"training: the evaluation '{self.evaluation}' has no score '{named.score}'; it "
                f"has {there}"
            )
        return self.scores[named.score]


def find_stop_reason(rule: StopIf, scored: Sequence[ScoredCheckpoint]) -> str | None:
    """Why the run ends by `rule`, in words; None if it goes on. `scored`: in order of steps."""
    scores = [each.find(rule) for each in scored]
    if len(scores) < rule.patience:
        return None
    newest = len(scores) - rule.patience
    if not all(_holds(rule, scores, at) for at in range(newest, len(scores))):
        return None
    shown = ", ".join(f"{each.value:.4g}" for each in scores[newest:])
    what = "no better than before" if rule.value is None else f"{rule.comparison} {rule.value:g}"
    last = scored[-1].step
    return f"{rule.evaluation}: {rule.score} was {shown} up to step {last}, {what}"


def _holds(rule: StopIf, scores: Sequence[CheckpointScore], at: int) -> bool:
    score = scores[at]
    if rule.value is None:
        return at > 0 and not all(score.is_better_than(earlier) for earlier in scores[:at])
    return score.value < rule.value if rule.comparison == "below" else score.value > rule.value


def choose_best(named: NamedScore, scored: Sequence[ScoredCheckpoint]) -> ScoredCheckpoint | None:
    """The checkpoint with the best score, of equals the earliest; None of none."""
    best: ScoredCheckpoint | None = None
    for each in scored:
        score = each.find(named)
        if math.isnan(score.value):
            continue
        if best is None or score.is_better_than(best.find(named)):
            best = each
    return best
