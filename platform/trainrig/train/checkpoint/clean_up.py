"""Deleting the checkpoints that a run file does not want kept, and what crashes left."""

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
    """Delete what `settings` do not keep of the run's checkpoints at `place`.

    Called by the one process that just committed the newest there, which belongs to `attempt`. Only
    what counts and has all its files is kept in the place of another. Parts without a manifest are
    deleted if they are of earlier attempts, which are over; those of later ones are left alone.
    `training`: has evaluations, which some are held for.
    """
    found = [
        each
        for each in list_committed(folder, place)
        if find_damage(each[0], thorough=False) is None
    ]
    whole = {path: step for path, step, _ in found}
    held, passing = set[int](), set[int]()
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
            if storage.exists(storage.join(path, KEPT)):  # an adapter's base
                continue
            manifest = storage.join(path, MANIFEST)
            if int(number[1]) < attempt.number or storage.exists(manifest):
                storage.delete(manifest)  # first: what a deletion cut short leaves is no checkpoint
                storage.delete_folder(path)
        if not storage.list_folders(step_folder):
            storage.delete_folder(step_folder)
