"""The training steps that learned from a part of a document, for a checkpoint and its ancestors.

The batch of a step is a function of the run file and the shards, so the steps are computed. Where
rows are cut from the documents in the order of the shards, the rows that hold a token are known
without reading tokens. In other packings the batches are computed again and searched.
"""

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.attribution.corpus_index import CorpusIndex, Occurrence
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.data_lineage import find_run_folder
from trainrig.posttrain.model_source import IMPORTED, is_hub_folder
from trainrig.runs.step_trace import RUN_FILE, TracedRun, find_shards, open_traced
from trainrig.tokens.batches import MicroBatch
from trainrig.tokens.permutation import Integers
from trainrig.tokens.rows.packing import Concatenate
from trainrig.tokens.rows.pretraining import PretrainBatches
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint
from trainrig.train.checkpoint.model_parents import find_checkpoint, read_parents
from trainrig.train.run import metrics
from trainrig.train.run_file.run_files import Pretraining

CHUNK = 2**16  # samples whose rows are computed at a time


@dataclass(frozen=True)
class LearnedSteps:
    """The updates of a run, from 1, that trained on some tokens."""

    run: str  # run folder
    steps: tuple[int, ...]


@dataclass(frozen=True)
class LearningRun:
    """A run that a checkpoint comes from, whose batches can be computed again."""

    folder: str
    traced: TracedRun
    token_set: int  # index of its shards in the index's sets
    updates: Mapping[int, int]  # update of each trained batch, up to the checkpoint

    def find_steps(self, index: CorpusIndex, found: Sequence[Occurrence]) -> list[LearnedSteps]:
        """Return the updates that had a token of each of `found` as a target, in the same order."""
        batches = self.traced.batches
        own = {
            n: o
            for n, o in enumerate(found)
            if o.token_set == self.token_set and (o.source, o.number) not in batches.masked
        }
        if self._reads_plain_rows():
            steps = find_plain_steps(batches, index, own, self.updates)
        else:
            steps = search_batches(batches, index, own, self.updates)
        return [
            LearnedSteps(self.folder, tuple(sorted(steps.get(n, ())))) for n in range(len(found))
        ]

    def _reads_plain_rows(self) -> bool:
        packing = self.traced.batches.settings.packing
        plain = isinstance(packing, Concatenate) and not packing.shuffle_documents
        return plain and isinstance(self.traced.settings, Pretraining)


def open_family(path: str, index: CorpusIndex) -> list[LearningRun]:
    """Return the traceable runs that the checkpoint at `path` comes from, the newest first.

    Raises ConfigError if no run of the family learned from the shards of `index`, or if the
    checkpoint has another tokenizer, and DataError if there is no checkpoint.
    """
    resolved = check_tokenizer(path, index)
    runs = list(_iterate_family(resolved))
    learning = []
    untraced = []
    for folder, last in runs:
        try:
            traced = open_traced(folder)
        except (ConfigError, DataError) as error:
            untraced.append(str(error))
            continue
        fingerprint = traced.batches.shards.fingerprint
        sets = [described.fingerprint for described in index.sets]
        if fingerprint in sets:
            updates = list_updates(traced, last)
            learning.append(LearningRun(folder, traced, sets.index(fingerprint), updates))
        else:
            untraced.append(f"{folder} learned from {find_shards(traced.settings)}")
    if not learning:
        reasons = "; ".join(untraced) or "it has no training run"
        raise ConfigError(
            f"{index.folder}: an index of other shards than {path} learned from ({reasons}); name "
            "an index of those shards"
        )
    return learning


def check_tokenizer(path: str, index: CorpusIndex) -> str:
    """Return the checkpoint at `path`; raise ConfigError if its tokenizer is not the index's."""
    resolved = checkpoint.resolve(path)
    tokenizer = checkpoint.describe(resolved)[1]
    if Encoder(tokenizer, resolved).fingerprint != index.encoder.fingerprint:
        raise ConfigError(
            f"{path}: its tokenizer differs from the tokenizer of {index.folder}; name an index "
            "of the tokens that it learned from"
        )
    return resolved


def _iterate_family(resolved: str) -> Iterator[tuple[str, int]]:
    """Yield the run folder and the step of a checkpoint, then of each ancestor."""
    resolved = storage.make_absolute(resolved)
    seen = set()
    while resolved not in seen:
        seen.add(resolved)
        folder = resolved.rsplit("/", 3)[0]  # RUN/checkpoints/STEP/ATTEMPT
        file = storage.join(folder, RUN_FILE)
        parent: Any
        if storage.exists(file):
            yield folder, int(checkpoint.read_entries(resolved)["step"])
            parent = tomllib.loads(storage.read(file).decode()).get("checkpoint")
            if isinstance(parent, str) and is_hub_folder(parent):
                parent = f"{folder}{IMPORTED}"
        else:
            parent = _read_newest_parent(folder)
        if not isinstance(parent, str):
            return
        try:
            resolved = storage.make_absolute(checkpoint.resolve(_find_parent(folder, parent)))
        except (ConfigError, DataError):  # the parent was deleted or is elsewhere
            return


def _read_newest_parent(folder: str) -> str | None:
    """Return the newest of the checkpoints that a model without a run was made from, or None.

    Its steps include the steps of older ones: averaged checkpoints are of one run, and the run of a
    merged adapter began with the other parent. Returns None too if that checkpoint is gone, or if
    other weights are in its place.
    """
    try:
        record = read_parents(folder)
    except DataError:
        return None
    return find_checkpoint(record.parents[-1], folder) if record else None


def _find_parent(folder: str, parent: str) -> str:
    """Return the path of a parent run or checkpoint; beside `folder` if both were moved."""
    if storage.is_remote(parent) or storage.find_first(parent):
        return parent
    run = find_run_folder(parent.rstrip("/"))
    inside = parent.rstrip("/").removeprefix(run)
    return storage.join(folder.rpartition("/")[0], run.rpartition("/")[2]) + inside


def list_updates(traced: TracedRun, last: int) -> dict[int, int]:
    """Return the update of each batch that was trained on, up to update `last`."""
    found = {}
    logged = metrics.read_series(traced.folder) if traced.folder else ()
    by_step = {
        line["step"]: line["train/data_step"] for line in logged if "train/data_step" in line
    }
    skipped = traced.settings.training.skip_data
    planned = -1
    for step in range(1, last + 1):
        planned += 1
        while any(begin <= planned < end for begin, end in skipped):
            planned += 1
        found[int(by_step.get(step, planned))] = step
    return found


def find_plain_steps(
    batches: PretrainBatches,
    index: CorpusIndex,
    found: Mapping[int, Occurrence],
    updates: Mapping[int, int],
) -> dict[int, set[int]]:
    """Return the updates that trained on each occurrence, by its number, in rows of plain order.

    Row w of T positions trains on the tokens w * T + 1 to w * T + T (concatenated.py).
    """
    length = batches.settings.base_length
    windows: dict[str, dict[int, set[int]]] = {}
    for number, occurrence in found.items():
        begin = index.find_position(occurrence)
        end = begin + occurrence.end - occurrence.begin
        for window in range(max(begin - 1, 0) // length, (end - 2) // length + 1):
            windows.setdefault(occurrence.source, {}).setdefault(window, set()).add(number)
    steps: dict[int, set[int]] = {}
    for source, window, step in iterate_windows(batches, windows, updates):
        for number in windows[source][window]:
            steps.setdefault(number, set()).add(step)
    return steps


def iterate_windows(
    batches: PretrainBatches, wanted: Mapping[str, Mapping[int, object]], updates: Mapping[int, int]
) -> Iterator[tuple[str, int, int]]:
    """Yield (source, base window, update) for each update that trained on a `wanted` window."""
    timeline = batches.timeline
    past = timeline.find_first_sample(max(updates, default=-1) + 1)
    bounds = [*(s.first_sample for s in timeline.stages if s.first_sample < past), past]
    asked = {source: np.array(sorted(own), np.int64) for source, own in wanted.items()}
    for stage_begin, stage_end in itertools.pairwise(bounds):
        for begin in range(stage_begin, stage_end, CHUNK):
            samples = np.arange(begin, min(begin + CHUNK, stage_end), dtype=np.int64)
            places = timeline.find_places(samples)
            for source, own in asked.items():
                mask = places.sources == batches.sources.index(source)
                if not mask.any():
                    continue
                stage = timeline.find_source_stage(places.stage, source)
                rows = stage.find_rows(places.ordinals[mask])
                span = rows.windows[:, None] + np.arange(rows.read.shape[1])
                hits = np.argwhere(np.isin(span, own) & ~rows.read)
                for row, column in hits.tolist():
                    step = updates.get(timeline.find_step(int(samples[mask][row])))
                    if step is not None:
                        yield source, int(span[row, column]), step


def search_batches(
    batches: PretrainBatches,
    index: CorpusIndex,
    found: Mapping[int, Occurrence],
    updates: Mapping[int, int],
) -> dict[int, set[int]]:
    """Return the updates whose rows hold at least half of each occurrence, by its number.

    Half, because a packing may cut a long document inside the occurrence. Computes the batch of
    every update again, so it takes as long as reading the training data.
    """
    wanted: dict[tuple[str, int], list[int]] = {}
    halves: dict[int, tuple[bytes, ...]] = {}
    for number, occurrence in found.items():
        wanted.setdefault((occurrence.source, occurrence.number), []).append(number)
        begin = index.find_position(occurrence)
        shards = index.open_shards(occurrence.token_set)
        ids = shards.read_window(occurrence.source, begin, occurrence.end - occurrence.begin)
        middle = len(ids) // 2
        parts = (ids[:middle], ids[middle:]) if middle else (ids,)
        halves[number] = tuple(map(_encode_ids, parts))
    steps: dict[int, set[int]] = {}
    for data_step, step in updates.items() if wanted else ():
        for micro in batches.at(data_step):
            for row, _, document in micro.pieces.tolist():
                source = batches.sources[micro.sources[row]]
                for number in wanted.get((source, document), ()):
                    if any(_row_holds(micro, row, half) for half in halves[number]):
                        steps.setdefault(number, set()).add(step)
    return steps


def _encode_ids(ids: NDArray[np.integer[Any]]) -> bytes:
    return ids.astype(np.int64).tobytes()


def _row_holds(micro: MicroBatch, row: int, ids: bytes) -> bool:
    """Return whether an array of ids of the row holds all `ids`, one after another."""
    arrays: list[Integers] = [
        array for array in micro.arrays.values() if array.ndim == 2 and array.dtype.kind == "i"
    ]
    for array in arrays:
        data = _encode_ids(array[row])
        at = data.find(ids)
        while at >= 0 and at % 8:
            at = data.find(ids, at + 1)
        if at >= 0:
            return True
    return False
