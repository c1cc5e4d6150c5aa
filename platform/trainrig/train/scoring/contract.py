"""The contract between training and evaluation, and the name of its implementation.

Evaluation depends on training, so nothing here imports it.
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
    """Checkpoint to score, with the evaluation, the output folder and the device.

    Plain data, which can be sent to another process.
    """

    evaluation: RunEvaluation
    checkpoint: str  # folder of one checkpoint; "" if there is none yet
    output: str  # folder for the scorecard
    device: str  # "auto" (the process's device) or "cpu"
    threads: int


class Scoring(Protocol):
    """Scoring of one checkpoint. It resumes from the results of a process that died."""

    def check(self, scores: Sequence[str]) -> None:
        """Raise InputError if the evaluation is not possible, or lacks one of the named `scores`.

        Does not read a checkpoint.
        """

    def begin(self) -> None:
        """Prepare the output folder. One process calls this, before any calls `share`."""

    def share(self, rank: int, world: int) -> Iterator[None]:
        """Score the share of `rank` among `world` processes; yield after each part of it."""

    def finish(self) -> Mapping[str, CheckpointScore]:
        """Score what is left, in this process alone, and write the scorecard.

        Returns its scores by TASK/METRIC, and each task's headline score by TASK.
        """


def make_scoring(request: ScoringRequest) -> Scoring:
    """Build the scoring that `request` describes."""
    scoring: Scoring = load_named(MAKER)(request)
    return scoring


def check_evaluations(training: Training) -> None:
    """Raise InputError if an evaluation of `training` is not possible, or lacks a needed score.

    A score is needed if `stop_if` or `best` decides by it.
    """
    named = [decision for decision in (training.stop_if, training.best) if decision]
    for evaluation in training.evaluations:
        wanted = [decision.score for decision in named if decision.evaluation == evaluation.name]
        make_scoring(ScoringRequest(evaluation, "", "", "cpu", training.threads)).check(wanted)
