"""The stage `index`: suffix arrays over the training tokens, in partitions.

    OUT/sets/NAME.json               a folder of token shards, and its partitions
        partitions/NAME.ids          [N] ids of the documents, with a separator after each
        partitions/NAME.suffixes     [N] uint32: the suffix array of the ids
        partitions/NAME.heads        [vocabulary + 2] int64: number of positions of smaller ids
        partitions/NAME.documents    [documents + 1] int64: where documents begin among the ids
        partitions/records.parquet   the records of the partitions, which a later run continues from
        tokenizer.json

A partition depends on its shards alone, so any number of workers writes the same bytes. A run that
names more folders sorts only the new ones.
"""

import functools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import manifest, storage
from trainrig.attribution import suffix_arrays
from trainrig.attribution.index_run_file import CorpusIndexing
from trainrig.attribution.token_sets import (
    TOKENIZER_FILE,
    DocumentRange,
    IndexPartitionPlan,
    TokenFolder,
    TokenSet,
    describe_set,
    encode_set,
    open_tokens,
)
from trainrig.manifest import FileSum, Manifest, Stage
from trainrig.ray_runtime.ray_session import connect
from trainrig.ray_runtime.split_processing import Progress, map_splits
from trainrig.splits import Phase, Split, Work, sum_counts
from trainrig.tokens.shards.token_shards import TRAIN, TokenShards

SETS = "sets"
PARTITIONS = "partitions"
IDS = ".ids"
SUFFIXES = ".suffixes"
HEADS = ".heads"
DOCUMENTS = ".documents"
CHUNK_DOCUMENTS = 2**14  # documents that are copied at a time


def index_tokens(run: CorpusIndexing, progress: Progress | None = None) -> Manifest:
    """Write the index that `run` describes; return the manifest of its folder.

    Raises DataError if the tokens cannot be used, or are of several tokenizers.
    """
    opened = open_tokens(run.tokens)
    encoder = opened[0].encoder
    shards = {
        f"shards {tokens.shards.fingerprint[:12]}": tokens.shards.fingerprint for tokens in opened
    }
    stage = manifest.claim(run.output, run, {"tokenizer": encoder.fingerprint}, shards)
    if stage.finished:
        return _update_places(stage, stage.finished, run, opened)
    with stage.undo_if_refused():
        described = [_keep_set(run, tokens) for tokens in opened]
        splits = [
            Split(plan.name, {"folder": tokens.folder, "plan": plan.model_dump()})
            for tokens, (token_set, _) in zip(opened, described, strict=True)
            for plan in token_set.partitions
        ]
        # The records stay beside the partitions, so that a longer run finds what is done.
        work = functools.partial(_make_work, run.output)
        phase = Phase(stage.build_path(PARTITIONS), work)
        if run.workers:
            connect(run.workers, "workers")
        map_splits(phase, splits, run.workers, progress)
    records = phase.read_results(splits)
    storage.write(stage.build_path(TOKENIZER_FILE), encoder.text.encode())
    files = {name: entry for record in records for name, entry in record.files.items()}
    own = [TOKENIZER_FILE, *(name for _, name in described)]
    files |= {name: manifest.compute_file_sum(stage.build_path(name)) for name in own}
    counts = sum_counts(record.counts for record in records)
    counts["bytes"] = sum(entry.bytes for entry in files.values())
    counts["partitions"] = len(splits)
    finished = stage.finish(counts, files)
    _delete_others(run.output, files, phase, {split.name for split in splits})
    return finished


def _keep_set(run: CorpusIndexing, tokens: TokenFolder) -> tuple[TokenSet, str]:
    """Return the description of a set and its file, which is written unless it is up to date.

    The partitions are those that were planned first; the folder is where the tokens lie now.
    """
    name = f"{SETS}/{tokens.shards.fingerprint[:12]}.json"
    path = storage.join(run.output, name)
    if storage.exists(path):  # an earlier call wrote it
        before = TokenSet.read(path)
        if before.find_folder(storage.make_absolute(run.output)) == tokens.folder:
            return before, name
        here = {"folder": tokens.folder, "index": storage.make_absolute(run.output)}
        described = before.model_copy(update=here)
    else:
        described = describe_set(tokens, run.output, run.partition_tokens)
    storage.write(path, encode_set(described))
    return described, name


def _update_places(
    stage: Stage, made: Manifest, run: CorpusIndexing, opened: Iterable[TokenFolder]
) -> Manifest:
    """Write to a finished index where its tokens lie now; return its manifest."""
    files = dict(made.files)
    for tokens in opened:
        name = _keep_set(run, tokens)[1]
        files[name] = manifest.compute_file_sum(stage.build_path(name))
    if files == made.files:
        return made
    size = sum(entry.bytes for entry in files.values())
    return stage.finish({**made.counts, "bytes": size}, files)


def _delete_others(
    folder: str, files: Iterable[str], phase: Phase, partitions: Collection[str]
) -> None:
    """Delete the sets and partitions of folders that the run file no longer names."""
    tables = phase.tables
    recorded = tables.read(tables.list_paths(), ["name"])["name"].to_pylist()
    if others := [name for name in recorded if name not in partitions]:
        tables.forget(others)
    kept = {storage.join(folder, name) for name in files}.union(tables.list_paths())
    for part in (SETS, PARTITIONS):
        there = storage.list_files(storage.join(folder, part))
        storage.delete_files(path for path in there if path not in kept)


def _make_work(output: str) -> Work:
    """Return the function that sorts one partition."""
    opened: dict[str, TokenShards] = {}

    def sort(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        folder = task["folder"]
        if folder not in opened:
            opened[folder] = TokenShards.open(storage.join(folder, TRAIN))
        shards = opened[folder]
        plan = IndexPartitionPlan.model_validate(task["plan"])
        ids, begins = read_documents(shards, plan)
        arrays: dict[str, NDArray[Any]] = {
            IDS: ids,
            DOCUMENTS: begins.astype("<i8"),
            HEADS: suffix_arrays.count_heads(ids, shards.vocabulary.size).astype("<i8"),
            SUFFIXES: suffix_arrays.sort_suffixes(ids).astype("<u4", copy=False),
        }
        files: dict[str, FileSum] = {}
        for ending, array in arrays.items():
            name = f"{PARTITIONS}/{plan.name}{ending}"
            path = storage.join(output, name)
            storage.write(path, memoryview(np.ascontiguousarray(array).data).cast("B"))
            files[name] = manifest.compute_file_sum(path)
        documents = plan.documents
        return {"documents": documents, "tokens": plan.tokens - documents}, files

    return sort


def read_documents(
    shards: TokenShards, plan: IndexPartitionPlan
) -> tuple[suffix_arrays.Ids, NDArray[np.int64]]:
    """Return the ids of a partition with separators, and [documents + 1] where documents begin."""
    vocabulary = shards.vocabulary.size
    ids = np.empty(plan.tokens, suffix_arrays.choose_dtype(vocabulary))
    begins = np.empty(plan.documents + 1, np.int64)
    at = 0
    document = 0
    for part in plan.ranges:
        for chunk in _cut_range(part):
            numbers = np.arange(chunk.first, chunk.past + 1, dtype=np.int64)
            starts = shards.find_document_starts(part.source, numbers)
            tokens = int(starts[-1] - starts[0])
            read = shards.read_window(part.source, int(starts[0]), tokens)
            count = chunk.past - chunk.first
            out = ids[at : at + tokens + count]
            suffix_arrays.join_documents(
                np.ascontiguousarray(read), starts - starts[0], vocabulary, out
            )
            begins[document : document + count] = at + starts[:-1] - starts[0] + np.arange(count)
            at += tokens + count
            document += count
    begins[document] = at
    return ids, begins


def _cut_range(part: DocumentRange) -> list[DocumentRange]:
    return [
        DocumentRange(source=part.source, first=first, past=min(first + CHUNK_DOCUMENTS, part.past))
        for first in range(part.first, part.past, CHUNK_DOCUMENTS)
    ]
