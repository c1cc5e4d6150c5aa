"""Runs that started from another run: found by their inputs, and made again from a replacement.

Averaged, exported and imported models are found by the parents that they record.
"""

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
from trainrig.train.checkpoint.model_parents import ModelParents, read_parents
from trainrig.train.run.run_folder import RunFolder

BASES = ("checkpoint", "continue_from")  # keys of run files that name the run to start from
# Keys that name another model or data that a replay would have to exchange too.
FURTHER_BASES = ("reference", "pretraining", "teacher")


@dataclass(frozen=True)
class ChildRun:
    """A run that started from the weights of another run, or a model that was made from them."""

    folder: str
    verb: str  # command that made it
    parent: str  # folder of the run that it started from
    step: int  # step of the checkpoint that it started from
    # Reason why a replay is not made automatically; None: it is.
    left_to_user: str | None


@dataclass(frozen=True)
class _Candidate:
    """A folder that may be a child: its run file, or the record of the parents of its model."""

    folder: str
    settings: Mapping[str, Any]  # empty for a model without a run
    record: ModelParents | None

    @property
    def verb(self) -> str:
        """The command that made it."""
        return self.record.verb if self.record else str(self.settings.get("stage"))

    def find_base(self, parent: str, steps: Mapping[str, int]) -> int | None:
        """Return the step of the checkpoint of `parent` that it started from, or None.

        `steps` are the steps of the checkpoints of `parent`, by fingerprint. Of several
        checkpoints, it is the newest.
        """
        if self.record is None:
            return _find_base(self.folder, self.settings, parent, steps)
        found = [
            steps.get(model.content, max(steps.values(), default=0))
            for model in self.record.parents
            if model.content in steps or find_run_folder(model.path) == parent
        ]
        return max(found, default=None)

    def explain_left(self) -> str | None:
        """Return the reason why it is not made again automatically, or None."""
        if self.record:
            return f"made again by hand, by `trainrig {self.verb}` of the new models"
        return _explain_left(self.verb, self.settings)


def list_children(folder: str, search: Iterable[str] = ()) -> Iterator[ChildRun]:
    """Yield the runs that started from the run in `folder`, and their children, parents first.

    Runs are looked for beside `folder`, in the folders `search`, and directly in these. A child is
    recognised by the fingerprint of the checkpoint that it started from, or by its path. Averaged,
    exported and imported models are children too.
    """
    candidates = list(_iterate_candidates([folder.rpartition("/")[0] or "/", *search]))
    waiting = [folder]
    seen = {folder}
    left = set[str]()
    while waiting:
        parent = waiting.pop(0)
        steps = _list_content_keys(parent)
        for candidate in candidates:
            if candidate.folder in seen or (step := candidate.find_base(parent, steps)) is None:
                continue
            seen.add(candidate.folder)
            waiting.append(candidate.folder)
            reason = candidate.explain_left()
            if parent in left and reason is None:
                reason = f"made again by hand, after {parent}"
            if reason:
                left.add(candidate.folder)
            yield ChildRun(candidate.folder, candidate.verb, parent, step, reason)


def _iterate_candidates(places: Iterable[str]) -> Iterator[_Candidate]:
    """Yield each run, and each model with recorded parents, at `places` or directly in them."""
    seen = set[str]()
    for place in map(storage.make_absolute, places):
        try:
            folders = storage.list_folders(place)
        except OSError:  # a folder that only its owner may list
            folders = []
        for folder in itertools.chain([place], sorted(folders)):
            folder = folder.rstrip("/")
            if folder in seen:
                continue
            seen.add(folder)
            file = storage.join(folder, RUN_FILE)
            try:
                if storage.exists(file):
                    yield _Candidate(folder, tomllib.loads(storage.read(file).decode()), None)
                elif record := read_parents(folder):
                    yield _Candidate(folder, {}, record)
            except (ValueError, DataError):  # a file of other software, or a damaged one
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
