"""Runs that started from another run: found by their inputs, and made again from a replacement."""

import itertools
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainrig import config, manifest, storage
from trainrig.errors import DataError
from trainrig.evaluate.data_lineage import find_run_folder
from trainrig.posttrain.tuning.fine_tuning import posttrain
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.runs.step_trace import RUN_FILE
from trainrig.train import checkpoint
from trainrig.train.run.run_folder import RunFolder

BASES = ("checkpoint", "continue_from")  # keys of run files that name the run to start from
# Keys that name another model or data that a replay would have to exchange too.
FURTHER_BASES = ("reference", "pretraining", "teacher")


@dataclass(frozen=True)
class ChildRun:
    """A run that started from the weights of another run."""

    folder: str
    verb: str
    parent: str  # folder of the run that it started from
    step: int  # step of the checkpoint that it started from
    # Reason why a replay is not made automatically; None: it is.
    left_to_user: str | None


def list_children(folder: str, search: Iterable[str] = ()) -> Iterator[ChildRun]:
    """Yield the runs that started from the run in `folder`, and their children, parents first.

    Runs are looked for beside `folder`, in the folders `search`, and directly in these. A child is
    recognised by the fingerprint of the checkpoint that it started from, or by its path.
    """
    candidates = list(_iterate_runs([folder.rpartition("/")[0] or "/", *search]))
    waiting = [folder]
    seen = {folder}
    while waiting:
        parent = waiting.pop(0)
        steps = _list_content_keys(parent)
        for candidate, settings in candidates:
            if (
                candidate in seen
                or (step := _find_base(candidate, settings, parent, steps)) is None
            ):
                continue
            seen.add(candidate)
            waiting.append(candidate)
            verb = str(settings.get("stage"))
            yield ChildRun(candidate, verb, parent, step, _explain_left(verb, settings))


def _iterate_runs(places: Iterable[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the folder and the run file of each run at `places` or directly in them."""
    seen = set[str]()
    for place in map(storage.make_absolute, places):
        try:
            folders = storage.list_folders(place)
        except OSError:  # a folder that only its owner may list
            folders = []
        for folder in itertools.chain([place], sorted(folders)):
            folder = folder.rstrip("/")
            file = storage.join(folder, RUN_FILE)
            if folder in seen or not storage.exists(file):
                continue
            seen.add(folder)
            try:
                yield folder, tomllib.loads(storage.read(file).decode())
            except ValueError:  # a file of other software
                continue


def _list_content_keys(folder: str) -> dict[str, int]:
    """Return the step of each existing checkpoint of a run, by the fingerprint of its files."""
    run = RunFolder(folder)
    found = {}
    for path, step, _ in checkpoint.list_committed(run, run.checkpoints):
        try:
            found[checkpoint.compute_content_key(path)] = step
        except DataError:
            continue
    return found


def _find_base(
    folder: str, settings: Mapping[str, Any], parent: str, steps: Mapping[str, int]
) -> int | None:
    """Return the step of the checkpoint of `parent` that a run started from, or None."""
    claim = manifest.read_claim(folder)
    for key in BASES:
        content = claim.inputs.get(key, "") if claim else ""
        if content in steps:
            return steps[content]
        path = settings.get(key)
        if isinstance(path, str) and find_run_folder(storage.make_absolute(path)) == parent:
            return max(steps.values(), default=0)
    return None


def _explain_left(verb: str, settings: Mapping[str, Any]) -> str | None:
    """Return the reason why a run of these settings is not made again automatically, or None."""
    if verb != FineTuning.verb:
        return f"runs of `{verb}` are made again by hand, with the new base in their run file"
    given = [key for key in FURTHER_BASES if settings.get(key)]
    if given:
        return f"its run file names {given[0]}, which may hold the pages too; exchange that first"
    return None


def replay_children(
    children: Iterable[ChildRun], replaced: Mapping[str, str], out: str
) -> dict[str, str]:
    """Make the children again that can be, below the folder `out`; return their new folders.

    `replaced` maps the folder of the old run to the folder of the run without the pages. A child of
    a child that is left to the user is left out too. Each is a run of its own, so the same call
    continues after a stop.
    """
    new = dict(replaced)
    for child in children:
        if child.left_to_user or child.parent not in new:
            continue
        output = storage.join(out, child.folder.rpartition("/")[2])
        settings = config.load(FineTuning, storage.join(child.folder, RUN_FILE))
        base = _find_step(new[child.parent], child.step)
        posttrain(settings.model_copy(update={"checkpoint": base, "output": output}))
        new[child.folder] = output
    return {old: folder for old, folder in new.items() if old not in replaced}


def _find_step(folder: str, step: int) -> str:
    """Return the checkpoint of `step` of a run; raise DataError if it is gone."""
    run = RunFolder(folder)
    for path, there, _ in checkpoint.list_committed(run, run.checkpoints):
        if there == step:
            return path
    raise DataError(
        f"{folder}: has no checkpoint of step {step}, from which a child started; keep it by "
        "training.checkpoints, and take the pages back again"
    )
