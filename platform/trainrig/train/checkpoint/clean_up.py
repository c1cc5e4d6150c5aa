"""Deletes the checkpoints that the run file does not keep, and the remains of failed saves."""

import re

from trainrig import storage
from trainrig.train.checkpoint.manifest import KEPT, MANIFEST, find_damage, list_committed
from trainrig.train.retention import Checkpoints
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run.scores.records import find_held_for_scores
from trainrig.train.run_file.training import Training

STEP_FOLDER = re.compile(r"step_(\d+)")
ATTEMPT_FOLDER = re.compile(r"attempt-(\d+)")


def clean_up(
    folder: RunFolder,
    place: str,
    attempt: TrainingAttempt,
    settings: Checkpoints,
    training: Training | None = None,
) -> None:
    """Delete the run's checkpoints at `place` that `settings` do not keep.

    Called by the process that has just committed the newest checkpoint there, as part of `attempt`.
    Only checkpoints that count and have all their files are kept. Folders without a manifest are
    deleted if they belong to earlier attempts, which are over; those of later attempts are left
    alone. `training`: its evaluations may need further checkpoints.
    """
    found = [
        committed
        for committed in list_committed(folder, place)
        if find_damage(committed[0], thorough=False) is None
    ]
    whole = {path: step for path, step, _ in found}
    held = set[int]()
    passing = set[int]()
    if training and training.evaluations:
        held, passing = find_held_for_scores(folder, training, {s: n for _, s, n in found[::-1]})
    kept = settings.select_kept(whole.values(), held, passing)
    for step_folder in storage.list_folders(place):
        step = STEP_FOLDER.fullmatch(step_folder.rpartition("/")[2])
        if step is None:
            continue
        for path in storage.list_folders(step_folder):
            number = ATTEMPT_FOLDER.fullmatch(path.rpartition("/")[2])
            if number is None or int(number[1]) > attempt.number or whole.get(path) in kept:
                continue
            if storage.exists(storage.join(path, KEPT)):  # needed as the base of an adapter
                continue
            manifest = storage.join(path, MANIFEST)
            if int(number[1]) < attempt.number or storage.exists(manifest):
                # first, so that an interrupted deletion leaves no checkpoint
                storage.delete(manifest)
                storage.delete_folder(path)
        if not storage.list_folders(step_folder):
            storage.delete_folder(step_folder)
