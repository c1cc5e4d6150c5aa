"""What training knows of evaluation: a contract, and by which name its maker is found.

Evaluation stands above training, so nothing here imports it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainrig.train.evaluations.decisions import CheckpointScore
from trainrig.train.evaluations.settings import RunEvaluation
from trainrig.train.run_file.training import Training
from trainrig.verbs import load_named

MAKER = "trainrig.evaluate.checkpoint_scoring:CheckpointScoring"


@dataclass(frozen=True)
class ScoringRequest:
    """What is to be scored, and where. Plain data, so it travels."""

    evaluation: RunEvaluation
    checkpoint: str  # folder of one checkpoint; "" while there is none yet
    output: str  # folder for the scorecard
    device: str  # "auto": that of the process; "cpu"
    threads: int


class Scoring(Protocol):
    """Scores one checkpoint. What was done of it by a process that died is not done again."""

    def check(self, scores: Sequence[str]) -> None:
        """Raise InputError if it cannot be asked, or will have none of the named `scores`. Asks no
        checkpoint."""

    def begin(self) -> None:
        """Make its folder ready. To be called by one process, before any calls `share`."""

    def share(self, rank: int, world: int) -> Iterator[None]:
        """Ask what falls to `rank` of `world` processes; yields after each part of it."""

    def finish(self) -> Mapping[str, CheckpointScore]:
        """Ask what is left, by this process alone, and write the scorecard; the scores in it, by
        TASK/METRIC, and each task's headline by TASK."""


def make_scoring(request: ScoringRequest) -> Scoring:
    """The scoring that `request` describes."""
    scoring: Scoring = load_named(MAKER)(request)
    return scoring


def check_evaluations(training: Training) -> None:
    """Raise InputError if a run cannot be evaluated as `training` says, or will lack a score that
    it is to be decided by."""
    named = [each for each in (training.stop_if, training.best) if each]
    for evaluation in training.evaluations:
        wanted = [each.score for each in named if each.evaluation == evaluation.name]
        make_scoring(ScoringRequest(evaluation, "", "", "cpu", training.threads)).check(wanted)
