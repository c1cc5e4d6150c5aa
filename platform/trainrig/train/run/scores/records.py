"""The scores of a run's checkpoints, as its folder keeps them.

evaluations/NAME/step_00001000.attempt-0002.json   the scores, or why there are none; created once
evaluations/NAME/step_00001000/attempt-0002/       what `evaluate` wrote: scorecard, rows, report
evaluations/ended.json                             the run ends at this step, and why

A score is that of the checkpoint of its step and attempt, and counts as long as that does: going
back to before a checkpoint (run_folder.py) withdraws its scores as well.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trainrig import storage
from trainrig.train.evaluations.decisions import CheckpointScore, ScoredCheckpoint, choose_best
from trainrig.train.evaluations.settings import BestBy
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.training import Training

FOLDER = "evaluations"
ENDED = "ended.json"
_RECORD = re.compile(r"step_(\d+)\.attempt-(\d+)\.json")


@dataclass(frozen=True)
class EarlyEnd:
    """The run ends before the last step of its run file."""

    step: int
    attempt: int  # that decided it
    why: str


def scorecard_folder(folder: RunFolder, evaluation: str, step: int, attempt: int) -> str:
    """Where `evaluate` writes what it makes of one checkpoint."""
    return storage.join(
        folder.path, FOLDER, evaluation, f"step_{step:08d}", f"attempt-{attempt:04d}"
    )


def write_scores(folder: RunFolder, scored: ScoredCheckpoint) -> None:
    """Keep `scored`, and join it to the run's metrics: once, however often it is called."""
    entry = {
        "evaluation": scored.evaluation,
        "step": scored.step,
        "attempt": scored.attempt,
        "problem": scored.problem,
        "scores": {
            name: {
                "value": each.value,
                "error": each.error,
                "higher_is_better": each.higher_is_better,
            }
            for name, each in scored.scores.items()
        },
    }
    path = _record_path(folder, scored.evaluation, scored.step, scored.attempt)
    created = storage.create(path, json.dumps(entry, indent=1).encode())
    if created and scored.problem is None:
        metrics.append_scores(folder.path, scored)


def read_scores(folder: RunFolder, evaluation: str) -> list[ScoredCheckpoint]:
    """The scores by `evaluation` that count, in order of steps, with those that failed."""
    attempts = folder.read_attempts()
    found: dict[int, ScoredCheckpoint] = {}
    for path in storage.list_files(storage.join(folder.path, FOLDER, evaluation), ".json"):
        name = path.removeprefix(storage.join(folder.path, FOLDER, evaluation)).strip("/")
        match = _RECORD.fullmatch(name)
        if match is None:
            continue
        step, number = int(match[1]), int(match[2])
        if folder.counts(step, number, attempts) and (
            step not in found or found[step].attempt < number
        ):
            found[step] = _parse(storage.read(path))
    return [found[step] for step in sorted(found)]


def read_usable_scores(folder: RunFolder, evaluation: str) -> list[ScoredCheckpoint]:
    """As `read_scores`, without those that failed."""
    return [each for each in read_scores(folder, evaluation) if each.problem is None]


def forget_failures(folder: RunFolder, evaluation: str) -> None:
    """Have what could not be scored tried again."""
    for each in read_scores(folder, evaluation):
        if each.problem is not None:
            storage.delete(_record_path(folder, evaluation, each.step, each.attempt))


def find_best(
    folder: RunFolder, best: BestBy, among: Collection[tuple[int, int]]
) -> ScoredCheckpoint | None:
    """The best checkpoint `among` those of these steps and attempts, by the scores that count."""
    scored = read_usable_scores(folder, best.evaluation)
    return choose_best(best, [each for each in scored if (each.step, each.attempt) in among])


def find_held_for_scores(
    folder: RunFolder, training: Training, saved: Mapping[int, int]
) -> tuple[set[int], set[int]]:
    """Which of the checkpoints `saved`, attempts by step, are not to be deleted: those that are
    still to be scored or compared, and the best. And which were made to be scored alone.

    What is held is a function of the newest step, not of how fast scoring is: a score counts here
    from the step on at which it is decided by.
    """
    steps, best = training.steps, training.best
    decided_by = {each.evaluation for each in (best, training.stop_if) if each}
    held: set[int] = set()
    for evaluation in training.evaluations:
        name = evaluation.name
        known = read_usable_scores if name in decided_by else read_scores
        over = {each.step for each in known(folder, name)}
        held |= {step for step in saved if evaluation.due(step, steps)} - over
    if best:
        by = next(each for each in training.evaluations if each.name == best.evaluation)
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
    """Have the run end at `end.step`, once the checkpoint of that step is whole."""
    entry = {"step": end.step, "attempt": end.attempt, "why": end.why}
    storage.write(storage.join(folder.path, FOLDER, ENDED), json.dumps(entry).encode())


def read_end(folder: RunFolder) -> EarlyEnd | None:
    """Where the run ends before its last step; None: it does not, or the run went back to before
    that was decided."""
    path = storage.join(folder.path, FOLDER, ENDED)
    if not storage.exists(path):
        return None
    entry = json.loads(storage.read(path))
    end = EarlyEnd(entry["step"], entry["attempt"], entry["why"])
    return end if folder.counts(end.step, end.attempt, folder.read_attempts()) else None


def find_last_step(folder: RunFolder, steps: int) -> int:
    """The step after which a run of `steps` steps is at its end."""
    end = read_end(folder)
    return end.step if end else steps


def _record_path(folder: RunFolder, evaluation: str, step: int, attempt: int) -> str:
    return storage.join(
        folder.path, FOLDER, evaluation, f"step_{step:08d}.attempt-{attempt:04d}.json"
    )


def _parse(data: bytes) -> ScoredCheckpoint:
    entry = json.loads(data)
    scores = {name: CheckpointScore(**each) for name, each in entry["scores"].items()}
    return ScoredCheckpoint(
        entry["evaluation"], entry["step"], entry["attempt"], scores, entry["problem"]
    )
