"""Pass that sends decisions to the exact repeats of the decided documents."""

import numpy as np

from trainrig.corpus.dedup.decisions import dedup_decisions
from trainrig.corpus.dedup.decisions.documents import BY_TEXT, BY_URL, KEPT, DedupDecisions
from trainrig.corpus.dedup.pairs import equals
from trainrig.corpus.dedup.pairs.document_reference import find_splits, make_refs
from trainrig.corpus.dedup.pairs.sorted_runs import Rows, read_part
from trainrig.corpus.dedup.passes.duplicate_search import DuplicateSearch, Kind
from trainrig.splits import Done, Task, Work

_REPEAT_KINDS = {"url": BY_URL, "text": BY_TEXT}


def read_decided(search: DuplicateSearch, turn: int, partition: int) -> Rows:
    """Read the decisions on documents of a partition, of this run and of earlier crawls."""
    path = search.list_runs(f"decided-{turn:05d}", search.partitions)[partition]
    tables = [read_part([path], partition, dedup_decisions.DECISION)]
    for number, split_index in search.list_own_indexes(partition):
        if split_index.earlier:
            tables.append(_list_dropped(number, DedupDecisions.load(split_index.documents)))
    return dedup_decisions.merge_in_order(*tables)


def _list_dropped(split_index: int, there: DedupDecisions) -> Rows:
    dropped = np.flatnonzero(there.kinds != KEPT)
    rows = np.zeros(len(dropped), dedup_decisions.DECISION)
    rows["ref"] = make_refs(split_index, dropped)
    rows["kind"] = there.kinds[dropped]
    rows["similarity"] = there.similarities[dropped]
    rows["id0"], rows["id1"] = there.repeated[dropped].T
    rows["cluster0"], rows["cluster1"] = there.clusters[dropped].T
    return rows


def propagate(search: DuplicateSearch, kind: Kind, turn: int) -> Work:
    """Return the work that decides each repeat in the partition of the document that it repeats."""
    partition_of = search.plan.find_partition(len(search.split_indexes))

    def write(task: Task) -> Done:
        partition = task["number"]
        known = read_decided(search, turn, partition)
        if kind == "url":
            known = dedup_decisions.merge_in_order(
                known, read_propagated(search, "text", partition, known)
            )
        elsewhere = search.find_part(
            f"{kind}-repeats-by-first", search.parts, partition, equals.REPEAT
        )
        firsts = equals.pick_one_per_first(search.read_own_repeats(kind, partition))
        with search.writing(f"{kind}-told", task) as run:
            for piece in elsewhere.iterate_pieces():
                rows = dedup_decisions.build_repeat_rows(piece, known, _REPEAT_KINDS[kind])
                run.add(rows, partition_of[find_splits(rows["ref"])])
                firsts = equals.pick_one_per_first(np.concatenate([firsts, piece]))
            if kind == "text":
                paths = search.list_runs(f"{kind}-repeats-by-ref", search.parts)
                there = read_part(paths, partition, equals.REPEAT)
                firsts = firsts[~np.isin(firsts["first"], there["ref"])]
                rows = dedup_decisions.build_first_rows(firsts, known)
                run.add(rows, partition_of[find_splits(rows["ref"])])
        return {}, {}

    return write


def read_propagated(search: DuplicateSearch, kind: Kind, partition: int, known: Rows) -> Rows:
    """Return DECISION rows of a partition's repeats and of their firsts, sorted by ref.

    A repeat's *first* is the document that it repeats; see `passes/repeats.py`.
    """
    received = dedup_decisions.merge_in_order(
        read_part(
            search.list_runs(f"{kind}-told", search.partitions), partition, dedup_decisions.DECISION
        )
    )
    own = dedup_decisions.build_own_repeat_rows(
        search.read_own_repeats(kind, partition), received, known, _REPEAT_KINDS[kind]
    )
    return dedup_decisions.merge_in_order(received, own)
