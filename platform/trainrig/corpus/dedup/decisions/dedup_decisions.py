"""Dedup decisions as rows that are exchanged between partitions.

Near copies know which kept document they repeat. Copies of a text, and captures of a URL, repeat
the first of their kind, which may have fallen itself: so its partition tells them what became of
it.
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
        ("id0", "u8"),  # of the kept document that it repeats
        ("id1", "u8"),
        ("similarity", "f8"),
        ("cluster0", "u8"),
        ("cluster1", "u8"),
    ]
)
_REPEATED = ("id0", "id1")
_CLUSTER = ("cluster0", "cluster1")


def build_decided_rows(decided: DecidedPartition) -> Rows:
    """A row for each document that is in pairs, in the order of refs."""
    rows = np.zeros(len(decided.refs), DECISION)
    rows["ref"] = decided.refs
    rows["kind"] = np.where(decided.states == FALLS, BY_LIKENESS, KEPT)
    rows["similarity"] = decided.similarities
    for names, ids in ((_REPEATED, decided.repeated), (_CLUSTER, decided.clusters)):
        for name, column in zip(names, ids.T, strict=True):
            rows[name] = column
    return rows


def build_repeat_rows(repeats: Rows, known: Rows, kind: int) -> Rows:
    """What becomes of `repeats`, where `known` (in the order of refs) tells of some of the firsts.

    Equal texts (BY_TEXT) share all that became of their first; of a capture of the same URL nobody
    knows how like it is.
    """
    rows = np.zeros(len(repeats), DECISION)
    rows["ref"] = repeats["ref"]
    at, there = find(known["ref"], repeats["first"])
    fell = there.copy()
    fell[there] = known["kind"][at[there]] != KEPT
    for name in _REPEATED:
        rows[name] = repeats[name]
        rows[name][fell] = known[name][at[fell]]
    rows["kind"] = kind
    rows["similarity"] = np.nan
    if kind == BY_TEXT:
        rows["kind"][fell] = known["kind"][at[fell]]
        rows["similarity"] = 1.0
        rows["similarity"][fell] = known["similarity"][at[fell]]
        for name, own in zip(_CLUSTER, _REPEATED, strict=True):
            rows[name] = repeats[own]  # a first that has no pair is the only one of its cluster
            rows[name][there] = known[name][at[there]]
    else:
        assert kind == BY_URL, kind
    return rows


def build_own_repeat_rows(repeats: Rows, told: Rows, known: Rows, kind: int) -> Rows:
    """What becomes of repeats of a first of their own partition.

    The same as of that one, where it was `told` (in the order of refs) of what it repeats itself;
    else what `build_repeat_rows` makes of them.
    """
    at, there = find(told["ref"], repeats["first"])
    there[there] = told["kind"][at[there]] != KEPT
    rows = np.take(told, at[there])
    rows["ref"] = repeats["ref"][there]
    return np.concatenate([rows, build_repeat_rows(repeats[~there], known, kind)])


def build_first_rows(repeats: Rows, known: Rows) -> Rows:
    """Rows for the firsts of equal texts that `known` does not tell of: each its own cluster.

    `repeats` has one of each first.
    """
    alone = repeats[~find(known["ref"], repeats["first"])[1]]
    rows = np.zeros(len(alone), DECISION)
    rows["ref"], rows["similarity"] = alone["first"], np.nan
    for name, own in zip(_CLUSTER, _REPEATED, strict=True):
        rows[name] = alone[own]
    return rows


def merge_in_order(*tables: Rows) -> Rows:
    """The rows of all, in the order of refs."""
    rows = np.concatenate(tables)
    return np.take(rows, np.argsort(rows["ref"], kind="stable"))
