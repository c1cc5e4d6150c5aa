"""Rows of dedup decisions, which partitions exchange.

The row of a near-duplicate names the kept document that it repeats. Exact duplicates of a text or
URL repeat the first of their kind, which may have been dropped itself. So the partition of the
first sends them its decision.
"""

import numpy as np

from trainrig.corpus.dedup.decisions.decision import FALLS, DecidedPartition
from trainrig.corpus.dedup.decisions.documents import BY_LIKENESS, BY_TEXT, BY_URL, KEPT
from trainrig.corpus.dedup.pairs.document_reference import find
from trainrig.corpus.dedup.pairs.sorted_runs import Rows

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

    A repeat's *first* is the document that it repeats; see `passes/repeats.py`. `known` must be
    sorted by ref. Equal texts (BY_TEXT) share all of their first's decision. For equal URLs
    (BY_URL) the similarity is unknown.
    """
    rows = np.zeros(len(repeats), DECISION)
    rows["ref"] = repeats["ref"]
    at, there = find(known["ref"], repeats["first"])
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
    at, there = find(decided["ref"], repeats["first"])
    there[there] = decided["kind"][at[there]] != KEPT
    rows = np.take(decided, at[there])
    rows["ref"] = repeats["ref"][there]
    return np.concatenate([rows, build_repeat_rows(repeats[~there], known, kind)])


def build_first_rows(repeats: Rows, known: Rows) -> Rows:
    """Build DECISION rows for firsts of equal texts that `known` lacks; each is its own cluster.

    `repeats` must hold one row for each first.
    """
    alone = repeats[~find(known["ref"], repeats["first"])[1]]
    rows = np.zeros(len(alone), DECISION)
    rows["ref"] = alone["first"]
    rows["similarity"] = np.nan
    for name, own in zip(_CLUSTER, _REPEATED, strict=True):
        rows[name] = alone[own]
    return rows


def merge_in_order(*tables: Rows) -> Rows:
    """Concatenate tables of rows, sorted by ref."""
    rows = np.concatenate(tables)
    return np.take(rows, np.argsort(rows["ref"], kind="stable"))
