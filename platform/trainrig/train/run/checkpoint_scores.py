"""Scores of a run's checkpoints: their records in the run folder, and the contract of scoring.

    evaluations/NAME/step_00001000.attempt-0002.json   scores, or why there are none; created once
    evaluations/NAME/step_00001000/attempt-0002/       output of `evaluate`: scorecard, rows, report
    evaluations/ended.json                             the step at which the run ends early, and why

A score belongs to the checkpoint of its step and attempt, and counts as long as that does: a
roll-back to before a checkpoint (run_folder.py) also withdraws its scores. Evaluation depends on
training, so nothing here imports it: the implementation of the contract is known by name.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainrig import storage
from trainrig.train import evaluations
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.training_settings import Training
from trainrig.verbs import load_named

SCORES_FOLDER = "evaluations"
ENDED = "ended.json"
_RECORD = re.compile(r"step_(\d+)\.attempt-(\d+)\.json")


@dataclass(frozen=True)
class EarlyEnd:
    """Decision that the run ends before the last step of its run file."""

    step: int
    attempt: int  # the attempt that decided it
    why: str


def scorecard_folder(folder: RunFolder, evaluation: str, step: int, attempt: int) -> str:
    """Return the folder for the output of `evaluate` for one checkpoint."""
    return storage.join(
        folder.path, SCORES_FOLDER, evaluation, f"step_{step:08d}", f"attempt-{attempt:04d}"
    )


def write_scores(folder: RunFolder, scored: evaluations.ScoredCheckpoint) -> None:
    """Store `scored`, and add it to the run's metrics. Repeated calls have no effect."""
    entry = {
        "evaluation": scored.evaluation,
        "step": scored.step,
        "attempt": scored.attempt,
        "problem": scored.problem,
        "scores": {
            name: {
                "value": score.value,
                "error": score.error,
                "higher_is_better": score.higher_is_better,
            }
            for name, score in scored.scores.items()
        },
    }
    path = _record_path(folder, scored.evaluation, scored.step, scored.attempt)
    created = storage.create(path, json.dumps(entry, indent=1).encode())
    if created and scored.problem is None:
        metrics.append_scores(folder.path, scored)


def read_scores(folder: RunFolder, evaluation: str) -> list[evaluations.ScoredCheckpoint]:
    """Read the scores by `evaluation` that count, failures included, in order of steps."""
    attempts = folder.read_attempts()
    newest: dict[int, tuple[int, str]] = {}  # attempt and location of the record, by step
    for path in storage.list_files(storage.join(folder.path, SCORES_FOLDER, evaluation), ".json"):
        name = path.removeprefix(storage.join(folder.path, SCORES_FOLDER, evaluation)).strip("/")
        match = _RECORD.fullmatch(name)
        if match is None:
            continue
        step = int(match[1])
        number = int(match[2])
        if folder.counts(step, number, attempts) and (
            step not in newest or newest[step][0] < number
        ):
            newest[step] = number, path
    records = [newest[step][1] for step in sorted(newest)]
    return [_parse(data) for data in storage.read_files(records)]


def read_usable_scores(folder: RunFolder, evaluation: str) -> list[evaluations.ScoredCheckpoint]:
    """Read the scores by `evaluation` that count, without failures, in order of steps."""
    return [scored for scored in read_scores(folder, evaluation) if scored.problem is None]


def forget_failures(folder: RunFolder, evaluation: str) -> None:
    """Delete the records of checkpoints that could not be scored, so that they are tried again."""
    storage.delete_files(
        _record_path(folder, evaluation, scored.step, scored.attempt)
        for scored in read_scores(folder, evaluation)
        if scored.problem is not None
    )


def find_best(
    folder: RunFolder, best: evaluations.BestBy, among: Collection[tuple[int, int]]
) -> evaluations.ScoredCheckpoint | None:
    """Return the best checkpoint among those given by (step, attempt), by the scores that count."""
    scored = read_usable_scores(folder, best.evaluation)
    return evaluations.choose_best(
        best, [candidate for candidate in scored if (candidate.step, candidate.attempt) in among]
    )


def find_held_for_scores(
    folder: RunFolder, training: Training, saved: Mapping[int, int]
) -> tuple[set[int], set[int]]:
    """Return the steps of checkpoints to keep for evaluations, and of those saved only for them.

    `saved`: attempt of each saved checkpoint, by step. Kept are those still to be scored or
    compared, and the best one. The result depends on the newest step, not on how fast scoring is: a
    score counts here only from the step at which it is decided on.
    """
    steps = training.steps
    best = training.best
    decided_by = {setting.evaluation for setting in (best, training.stop_if) if setting}
    held: set[int] = set()
    for evaluation in training.evaluations:
        name = evaluation.name
        known = read_usable_scores if name in decided_by else read_scores
        over = {scored.step for scored in known(folder, name)}
        held |= {step for step in saved if evaluation.due(step, steps)} - over
    if best:
        by = next(
            evaluation for evaluation in training.evaluations if evaluation.name == best.evaluation
        )
        newest = max(saved, default=0)
        decided = newest if newest >= find_last_step(folder, steps) else newest - best.lag
        held |= {step for step in saved if by.due(step, steps) and step > decided}
        compared = {(step, number) for step, number in saved.items() if step <= decided}
        if found := find_best(folder, best, compared):
            held.add(found.step)
    passing = {
        step
        for step in saved
        if training.saves_after(step) and not training.checkpoints.due(step, steps)
    }
    return held, passing


def write_end(folder: RunFolder, end: EarlyEnd) -> None:
    """Have the run end at `end.step`, once the checkpoint of that step is complete."""
    entry = {"step": end.step, "attempt": end.attempt, "why": end.why}
    storage.write(storage.join(folder.path, SCORES_FOLDER, ENDED), json.dumps(entry).encode())


def read_end(folder: RunFolder) -> EarlyEnd | None:
    """Read where the run ends before its last step; None if it does not.

    A roll-back to before that decision withdraws it.
    """
    path = storage.join(folder.path, SCORES_FOLDER, ENDED)
    try:
        entry = json.loads(storage.read(path))
    except FileNotFoundError:
        return None
    end = EarlyEnd(entry["step"], entry["attempt"], entry["why"])
    return end if folder.counts(end.step, end.attempt, folder.read_attempts()) else None


def find_last_step(folder: RunFolder, steps: int) -> int:
    """Return the step after which a run of `steps` steps ends, by its scores or its run file."""
    end = read_end(folder)
    return end.step if end else steps


def _record_path(folder: RunFolder, evaluation: str, step: int, attempt: int) -> str:
    return storage.join(
        folder.path, SCORES_FOLDER, evaluation, f"step_{step:08d}.attempt-{attempt:04d}.json"
    )


def _parse(data: bytes) -> evaluations.ScoredCheckpoint:
    entry = json.loads(data)
    scores = {name: evaluations.CheckpointScore(**score) for name, score in entry["scores"].items()}
    return evaluations.ScoredCheckpoint(
        entry["evaluation"], entry["step"], entry["attempt"], scores, entry["problem"]
    )


MAKER = "trainrig.evaluate.checkpoint_scoring:CheckpointScoring"


@dataclass(frozen=True)
class ScoringRequest:
    """Checkpoint to score, with the evaluation, the output folder and the device.

    Plain data, which can be sent to another process.
    """

    evaluation: evaluations.RunEvaluation
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

    def finish(self) -> Mapping[str, evaluations.CheckpointScore]:
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
