"""Passes that find exact repeats and decide them, and the rows of decisions that they exchange.

Documents are equal if the digests of their URLs or texts are. Of equal documents, the one that
comes first in the keep order is *the first*, and each other one is a *repeat* of it. Only documents
that are no repeats are then searched for near-duplicates, by their MinHash band keys.

The row of a near-duplicate names the kept document that it repeats. Exact duplicates of a text or
URL repeat the first of their kind, which may have been dropped itself. So the partition of the
first sends them its decision.
"""

import numpy as np

from trainrig.corpus.array_types import UInt64s
from trainrig.corpus.dedup import dedup_decisions
from trainrig.corpus.dedup.dedup_decisions import (
    BY_LIKENESS,
    BY_TEXT,
    BY_URL,
    KEPT,
    DedupDecisions,
    Documents,
)
from trainrig.corpus.dedup.document_refs import find_refs, find_splits, make_refs, split_digests
from trainrig.corpus.dedup.duplicate_search import DuplicateSearch, Kind, mark_absent
from trainrig.corpus.dedup.greedy_decision import FALLS, DecidedPartition
from trainrig.corpus.dedup.sorted_runs import Rows, read_part
from trainrig.corpus.url_keys import compute_url_key
from trainrig.splits import Done, Task, Work

DECISION = np.dtype(
    [
        ("ref", "u8"),
        ("kind", "u8"),
        ("id0", "u8"),  # id of the kept document that the document repeats
        ("id1", "u8"),
        ("similarity", "f8"),
        ("cluster0", "u8"),
        ("cluster1", "u8"),
    ]
)
_REPEATED = ("id0", "id1")
_CLUSTER = ("cluster0", "cluster1")


def build_decided_rows(decided: DecidedPartition) -> Rows:
    """Build a DECISION row for each document that has pairs, sorted by ref."""
    rows = np.zeros(len(decided.refs), DECISION)
    rows["ref"] = decided.refs
    rows["kind"] = np.where(decided.states == FALLS, BY_LIKENESS, KEPT)
    rows["similarity"] = decided.similarities
    for names, ids in ((_REPEATED, decided.repeated), (_CLUSTER, decided.clusters)):
        for name, column in zip(names, ids.T, strict=True):
            rows[name] = column
    return rows


def build_repeat_rows(repeats: Rows, known: Rows, kind: int) -> Rows:
    """Build the DECISION rows of `repeats`, given the rows `known` of some of their firsts.

    A repeat's *first* is the document that it repeats. `known` must be
    sorted by ref. Equal texts (BY_TEXT) share all of their first's decision. For equal URLs
    (BY_URL) the similarity is unknown.
    """
    rows = np.zeros(len(repeats), DECISION)
    rows["ref"] = repeats["ref"]
    at, there = find_refs(known["ref"], repeats["first"])
    dropped = there.copy()
    dropped[there] = known["kind"][at[there]] != KEPT
    for name in _REPEATED:
        rows[name] = repeats[name]
        rows[name][dropped] = known[name][at[dropped]]
    rows["kind"] = kind
    rows["similarity"] = np.nan
    if kind == BY_TEXT:
        rows["kind"][dropped] = known["kind"][at[dropped]]
        rows["similarity"] = 1.0
        rows["similarity"][dropped] = known["similarity"][at[dropped]]
        for name, own in zip(_CLUSTER, _REPEATED, strict=True):
            rows[name] = repeats[own]  # a first without pairs is alone in its cluster
            rows[name][there] = known[name][at[there]]
    else:
        assert kind == BY_URL, kind
    return rows


def build_own_repeat_rows(repeats: Rows, decided: Rows, known: Rows, kind: int) -> Rows:
    """Build the DECISION rows of repeats whose first lies in the same partition.

    If the first was itself dropped as a repeat by `decided` (sorted by ref), its row is copied.
    Otherwise the row comes from `build_repeat_rows`.
    """
    at, there = find_refs(decided["ref"], repeats["first"])
    there[there] = decided["kind"][at[there]] != KEPT
    rows = np.take(decided, at[there])
    rows["ref"] = repeats["ref"][there]
    return np.concatenate([rows, build_repeat_rows(repeats[~there], known, kind)])


def build_first_rows(repeats: Rows, known: Rows) -> Rows:
    """Build DECISION rows for firsts of equal texts that `known` lacks; each is its own cluster.

    `repeats` must hold one row for each first.
    """
    alone = repeats[~find_refs(known["ref"], repeats["first"])[1]]
    rows = np.zeros(len(alone), DECISION)
    rows["ref"] = alone["first"]
    rows["similarity"] = np.nan
    for name, own in zip(_CLUSTER, _REPEATED, strict=True):
        rows[name] = alone[own]
    return rows


def drop_firsts(rows: Rows, similar: UInt64s) -> None:
    """Drop the kept documents that have copies; `rows` are DECISION rows, changed in place.

    `similar` are the refs of documents with similar ones. The others have equal texts only.
    """
    clustered = np.zeros(len(rows), bool)
    for name in _CLUSTER:
        clustered |= rows[name] != 0
    firsts = clustered & (rows["kind"] == KEPT)
    rows["kind"][firsts] = np.where(np.isin(rows["ref"][firsts], similar), BY_LIKENESS, BY_TEXT)


def merge_in_order(*tables: Rows) -> Rows:
    """Concatenate tables of rows, sorted by ref."""
    rows = np.concatenate(tables)
    return np.take(rows, np.argsort(rows["ref"], kind="stable"))


_NO_URL = np.frombuffer(compute_url_key(""), np.uint8)


def write_digests(search: DuplicateSearch, kind: Kind) -> Work:
    """Return the work that writes the digests of a partition's documents, by ranges of digests.

    `write_repeats` finds repeats across partitions in them. Repeats within the partition are found
    here and left out, so a frequent text has one row per partition, not one per copy.
    """

    def write(task: Task) -> Done:
        tables = [np.empty(0, dedup_decisions.DIGEST)]
        repeats = np.empty(0, np.uint64)
        if kind == "text" and search.urls:  # the pass over URLs came before
            repeats = search.read_repeats("url", task["number"])
        for number, split_index in search.list_own_indexes(task["number"]):
            documents = Documents.load(split_index, search.keep)
            refs = make_refs(number, np.arange(split_index.count))
            wanted = mark_absent(repeats, number, split_index)
            if kind == "url":
                wanted &= (documents.urls != _NO_URL).any(axis=1)
            if split_index.earlier:  # an earlier run decided, and dropped some by URL or text
                there = DedupDecisions.load(split_index.documents)
                repeated = np.isin(there.kinds, [BY_URL] if kind == "url" else [BY_URL, BY_TEXT])
                wanted &= ~repeated | there.firsts
            digests = split_digests(documents.urls if kind == "url" else documents.digests)
            rows = dedup_decisions.digest_rows(digests, documents.ranks, documents.ids, refs)
            tables.append(rows[wanted])
        rows = np.concatenate(tables)
        found = dedup_decisions.find_repeated_documents(rows)
        search.write(f"{kind}-own-repeats", task, found, found["ref"])
        search.write_by_key(f"{kind}-keys", task, rows[~np.isin(rows["ref"], found["ref"])])
        return {}, {}

    return write


def write_repeats(search: DuplicateSearch, kind: Kind) -> Work:
    """Return the work that finds the repeats within a range of digests.

    Each repeat is written twice: to its own partition, which leaves it out of later passes, and to
    the partition of its first, which decides it.
    """

    def find(task: Task) -> Done:
        paths = search.list_runs(f"{kind}-keys", search.partitions)
        found = dedup_decisions.find_repeated_documents(
            read_part(paths, task["number"], dedup_decisions.DIGEST)
        )
        search.write(f"{kind}-repeats-by-ref", task, found, found["ref"])
        search.write(f"{kind}-repeats-by-first", task, found, found["first"])
        return {}, {}

    return find


_REPEAT_KINDS = {"url": BY_URL, "text": BY_TEXT}


def read_decided(search: DuplicateSearch, turn: int, partition: int) -> Rows:
    """Read the decisions on documents of a partition, of this run and of earlier crawls."""
    path = search.list_runs(f"decided-{turn:05d}", search.partitions)[partition]
    tables = [read_part([path], partition, DECISION)]
    for number, split_index in search.list_own_indexes(partition):
        if split_index.earlier:
            tables.append(_list_dropped(number, DedupDecisions.load(split_index.documents)))
    return merge_in_order(*tables)


def _list_dropped(split_index: int, there: DedupDecisions) -> Rows:
    dropped = np.flatnonzero(~there.firsts)
    rows = np.zeros(len(dropped), DECISION)
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
            known = merge_in_order(known, read_propagated(search, "text", partition, known))
        elsewhere = search.find_part(
            f"{kind}-repeats-by-first", search.parts, partition, dedup_decisions.REPEAT
        )
        firsts = dedup_decisions.pick_one_per_first(search.read_own_repeats(kind, partition))
        with search.writing(f"{kind}-told", task) as run:
            for piece in elsewhere.iterate_pieces():
                rows = build_repeat_rows(piece, known, _REPEAT_KINDS[kind])
                run.add(rows, partition_of[find_splits(rows["ref"])])
                firsts = dedup_decisions.pick_one_per_first(np.concatenate([firsts, piece]))
            if kind == "text":
                paths = search.list_runs(f"{kind}-repeats-by-ref", search.parts)
                there = read_part(paths, partition, dedup_decisions.REPEAT)
                firsts = firsts[~np.isin(firsts["first"], there["ref"])]
                rows = build_first_rows(firsts, known)
                run.add(rows, partition_of[find_splits(rows["ref"])])
        return {}, {}

    return write


def read_propagated(search: DuplicateSearch, kind: Kind, partition: int, known: Rows) -> Rows:
    """Return DECISION rows of a partition's repeats and of their firsts, sorted by ref.

    A repeat's *first* is the document that it repeats.
    """
    received = merge_in_order(
        read_part(search.list_runs(f"{kind}-told", search.partitions), partition, DECISION)
    )
    own = build_own_repeat_rows(
        search.read_own_repeats(kind, partition), received, known, _REPEAT_KINDS[kind]
    )
    return merge_in_order(received, own)
