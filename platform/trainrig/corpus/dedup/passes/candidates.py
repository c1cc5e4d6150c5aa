"""Passes over band keys, which find the pairs of documents that share one: the candidates."""

import numpy as np

from trainrig.corpus.dedup.decisions.documents import KEPT, DedupDecisions
from trainrig.corpus.dedup.pairs import buckets, key_ranges
from trainrig.corpus.dedup.pairs import shared_keys as sharing
from trainrig.corpus.dedup.pairs.document_reference import find_splits
from trainrig.corpus.dedup.pairs.remote_documents import DedupBuffer, find_remote_documents
from trainrig.corpus.dedup.pairs.sorted_runs import RunPart, write_grouped, writing_run
from trainrig.corpus.dedup.passes.duplicate_search import DuplicateSearch, mark_absent
from trainrig.corpus.dedup.signatures.signature_file import load_columns
from trainrig.splits import Done, Task, Work


def _list_searched(search: DuplicateSearch, partition: int) -> list[sharing.Searched]:
    """Return the documents to search in each split index: kept ones that are no exact repeats."""
    repeats = search.read_repeats("text", partition)
    if search.urls:
        repeats = np.concatenate([repeats, search.read_repeats("url", partition)])
    found = []
    for number, split_index in search.list_own_indexes(partition):
        wanted = mark_absent(repeats, number, split_index)
        if split_index.earlier:
            wanted &= DedupDecisions.load(split_index.documents).kinds == KEPT
        keys = load_columns(split_index.signatures, ["keys"])["keys"]
        found.append(sharing.Searched(number, keys, wanted))
    return found


def write_band_keys(search: DuplicateSearch) -> Work:
    """Return the work that writes the band keys of the searched documents."""

    def write(task: Task) -> Done:
        found, starts = sharing.group_keys_by_part(
            _list_searched(search, task["number"]), len(search.parts)
        )
        write_grouped(search.path_of("band-keys", f"{task['number']:05d}.run"), found, starts)
        return {}, {}

    return write


def find_shared_keys(search: DuplicateSearch) -> Work:
    """Return the work that marks the band keys that more than one document has."""

    def compare(task: Task) -> Done:
        runs = search.list_runs("band-keys", search.partitions)
        keys = RunPart.of(runs, task["number"], sharing.KEY)
        starts = np.cumsum([0, *keys.count_rows(runs)])
        with writing_run(
            search.path_of("shared-keys", f"{task['number']:05d}.run"), len(runs)
        ) as run:
            run.add_grouped(sharing.mark_shared(keys, search.plan.keys), starts)
        return {}, {}

    return compare


def write_bands(search: DuplicateSearch) -> Work:
    """Return the work that writes an entry for each shared key of each document."""

    def write(task: Task) -> Done:
        runs = search.list_runs("shared-keys", search.parts)
        shared = RunPart.of(runs, task["number"], sharing.SHARED)
        rows, starts = sharing.build_entries(
            _list_searched(search, task["number"]),
            lambda split_index: search.read_order(search.split_indexes[split_index]),
            shared.read(),
            np.array(shared.count_rows(runs)),
        )
        write_grouped(search.path_of("bands", f"{task['number']:05d}.run"), rows, starts)
        return {}, {}

    return write


def find_candidates(search: DuplicateSearch) -> Work:
    """Return the work that pairs documents sharing a key, except two earlier, decided ones.

    Each pair is written to the partition that compares it, and requests the remote shingles needed
    there.
    """
    partition_of = search.plan.find_partition(len(search.split_indexes))
    first_earlier = sum(not split_index.earlier for split_index in search.split_indexes)
    earlier = first_earlier << 32 if first_earlier < len(search.split_indexes) else None

    def pair(task: Task) -> Done:
        entries = search.find_part("bands", search.partitions, task["number"], buckets.ENTRY)
        pairs = key_ranges.iterate_candidates(
            entries, len(search.parts), search.plan.entries, earlier
        )
        with search.writing("candidates", task) as run, search.writing("wanted", task) as wanted:
            remote = DedupBuffer(
                lambda rows: wanted.add(rows, partition_of[find_splits(rows["ref"])])
            )
            for found in pairs:
                run.add(found, partition_of[find_splits(found["a"])])
                remote.add(find_remote_documents(found["a"], found["b"], partition_of))
            remote.close()
        return {}, {}

    return pair
