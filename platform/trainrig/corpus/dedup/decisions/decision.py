"""Decides which duplicates to drop: greedily in keep order, over verified pairs, partition by
partition.

A document falls only if it has a verified pair with a *kept* document before it in the keep order.
So a chain A~B~C without A~C keeps A and C, and nothing falls for being like something that is gone.

One after the other that is a loop over all documents. Here each partition decides as much as it
can, tells the others what became of those that they have pairs with, and looks again: a parallel
greedy independent set (Blelloch, Fineman and Shun 2012, arXiv:1202.3205), whose rounds are few
unless chains run to and fro, and whose answer is that of the loop. A round follows from what the
partitions told in the round before and nothing else. The same rounds carry the lowest id of each
cluster to all its documents.

A pair lies where its *later* document does, so a partition holds as many as its documents have with
those before them. Of those of another partition, its *remote documents*, it is told once in a
round, however many pairs they are in; and it echoes what cluster it sees them in.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.dedup.pairs.sorted_runs import Rows

UNKNOWN, STAYS, FALLS = 0, 1, 2

# A pair that decides: `later` falls if `earlier` stays. Refs.
EDGE = np.dtype([("later", "u8"), ("earlier", "u8"), ("similarity", "f8")])
# What became of a remote document, told by its own partition; and what its reader makes of its
# cluster.
CLUSTER_MESSAGE = np.dtype([("about", "u8"), ("cluster0", "u8"), ("cluster1", "u8")])
STATE_MESSAGE = np.dtype([*CLUSTER_MESSAGE.descr, ("state", "u1")])


def build_edges(pairs: Rows, a: Rows, b: Rows) -> tuple[Rows, Rows, Rows]:
    """EDGE for each of PAIR; NAME of each one's later document; NAME of each one's earlier one.

    `a` and `b` are NAME of the two of each pair.
    """
    swapped = _comes_before(a, b)
    later, earlier = np.where(swapped, b, a), np.where(swapped, a, b)
    rows = np.empty(len(pairs), EDGE)
    rows["later"], rows["earlier"] = later["ref"], earlier["ref"]
    rows["similarity"] = pairs["similarity"]
    return rows, later, earlier


def _comes_before(one: Rows, other: Rows) -> NDArray[np.bool_]:
    """Whether it does in the keep order: by rank, then by id, then by ref."""
    before = np.zeros(len(one), bool)
    for name in ("ref", "id1", "id0", "rank"):
        before = (one[name] < other[name]) | ((one[name] == other[name]) & before)
    return before


@dataclass(frozen=True)
class DecidedPartition:
    """The documents of one partition that are in pairs, as far as they are decided."""

    refs: NDArray[np.uint64]  # in order
    states: NDArray[np.uint8]
    repeated: NDArray[np.uint64]  # [documents, 2] id of the kept one that it falls to; 0, 0
    similarities: NDArray[np.float64]  # to that one; NaN
    clusters: NDArray[np.uint64]  # [documents, 2] id
    cluster_messages: Rows  # about the remote documents
    unsettled: int  # documents not decided, and clusters not agreed on

    def make_messages(self, about: NDArray[np.uint64]) -> Rows:
        """STATE_MESSAGEs about documents of this partition."""
        at = np.searchsorted(self.refs, about)
        rows = _build_messages(about, self.clusters[at], STATE_MESSAGE)
        rows["state"] = self.states[at]
        return rows


def decide(
    names: Rows,
    edges: Rows,
    own: NDArray[np.uint64],
    state_messages: Rows | None,
    cluster_messages: Callable[[], Iterable[Rows]],
) -> DecidedPartition:
    """One partition's round.

    Args:
        names: DOCUMENT_KEY of all in its edges, and of its own that are remote documents elsewhere;
        by ref. edges: EDGE of which it has `later`.
        own: [2] the first ref of the partition, and the one after its last.
        state_messages: STATE_MESSAGE about all its remote documents; None at first.
        cluster_messages: CLUSTER_MESSAGE of all its own that are remote documents elsewhere, in
        pieces; read twice.
    """
    refs, ids = np.ascontiguousarray(names["ref"]), np.stack([names["id0"], names["id1"]], axis=1)
    here = slice(*np.searchsorted(refs, own).tolist())
    order = np.lexsort([names[name] for name in ("ref", "id1", "id0", "rank")])  # keep order
    del names
    edges = np.take(edges, np.lexsort((edges["earlier"], edges["later"])))
    first_edge = np.append(np.searchsorted(edges["later"], refs), len(edges))
    target = np.searchsorted(refs, edges["earlier"])
    similarities = np.ascontiguousarray(edges["similarity"])
    del edges

    states, labels = np.zeros(len(refs), np.uint8), ids.copy()
    if state_messages is not None:
        of_messages = np.searchsorted(refs, state_messages["about"])
        states[of_messages] = state_messages["state"]
        _lower(labels, of_messages, _cluster(state_messages))
    for piece in cluster_messages():
        _lower(labels, np.searchsorted(refs, piece["about"]), _cluster(piece))
    _sweep(order, here.start, here.stop, first_edge, target, states)
    partners = _find_partners(
        order, here.start, here.stop, first_edge, target, states, similarities
    )
    _spread_clusters(first_edge, target, labels)

    unsettled = _count_unsettled(refs, here, states, labels, state_messages, cluster_messages)
    falls = np.flatnonzero(partners >= 0)
    repeated = np.zeros((len(partners), 2), np.uint64)
    repeated[falls] = ids[target[partners[falls]]]
    likeness = np.full(len(partners), np.nan)
    likeness[falls] = similarities[partners[falls]]
    remote = np.ones(len(refs), bool)
    remote[here] = False
    return DecidedPartition(
        refs[here],
        states[here],
        repeated,
        likeness,
        labels[here],
        _build_messages(refs[remote], labels[remote], CLUSTER_MESSAGE),
        unsettled,
    )


def _count_unsettled(
    refs: NDArray[np.uint64],
    here: slice,
    states: NDArray[np.uint8],
    labels: NDArray[np.uint64],
    state_messages: Rows | None,
    cluster_messages: Callable[[], Iterable[Rows]],
) -> int:
    """Of how many documents partitions have said different things, or nothing yet."""
    agreed = np.zeros(len(refs), bool)
    agreed[here] = states[here] != UNKNOWN
    if state_messages is not None:
        of_messages = np.searchsorted(refs, state_messages["about"])
        agreed[of_messages] = (state_messages["state"] != UNKNOWN) & _are_equal(
            _cluster(state_messages), labels[of_messages]
        )
    unsettled = int(np.count_nonzero(~agreed))
    for piece in cluster_messages():
        at = np.searchsorted(refs, piece["about"])
        unsettled += int(np.count_nonzero(~_are_equal(_cluster(piece), labels[at])))
    return unsettled


def _build_messages(
    refs: NDArray[np.uint64], clusters: NDArray[np.uint64], kind: "np.dtype[np.void]"
) -> Rows:
    rows = np.empty(len(refs), kind)
    rows["about"] = refs
    rows["cluster0"], rows["cluster1"] = clusters.T
    return rows


def _cluster(rows: Rows) -> NDArray[np.uint64]:
    return np.stack([rows["cluster0"], rows["cluster1"]], axis=1)


def _are_equal(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.bool_]:
    return np.asarray((one == other).all(axis=1))


@compile_nogil
def _lower(labels: NDArray[np.uint64], at: NDArray[np.int64], others: NDArray[np.uint64]) -> None:
    """Put those of `others` that are lower in place of the labels `at` which they belong."""
    for nth in range(len(at)):
        if _is_below(others[nth], labels[at[nth]]):
            labels[at[nth]] = others[nth]


@compile_nogil
def _sweep(
    order: NDArray[np.int64],
    first: int,
    end: int,
    first_edge: NDArray[np.int64],
    target: NDArray[np.int64],
    states: NDArray[np.uint8],
) -> None:
    """Decide the documents `first` up to `end`, each looked at once in the keep order.

    Args:
        order: [documents] their indices, in the keep order; remote documents are among them.
        first_edge: [documents + 1] where the edges of each begin.
        target: [edges] index of the earlier document.
        states: [documents] those of remote documents are there.
    """
    for document in order:
        if document < first or document >= end:
            continue
        unknown = False
        state = STAYS
        for edge in range(first_edge[document], first_edge[document + 1]):
            other = states[target[edge]]
            if other == STAYS:
                state = FALLS
            elif other == UNKNOWN:
                unknown = True
        states[document] = UNKNOWN if unknown and state == STAYS else state


@compile_nogil
def _find_partners(
    order: NDArray[np.int64],
    first: int,
    end: int,
    first_edge: NDArray[np.int64],
    target: NDArray[np.int64],
    states: NDArray[np.uint8],
    similarities: NDArray[np.float64],
) -> NDArray[np.int64]:
    """[documents from `first` up to `end`] the edge to the most similar kept one, the first of
    equals in the keep order; or -1."""
    places = np.empty(len(order), np.int64)
    for place in range(len(order)):
        places[order[place]] = place
    partners = np.full(end - first, -1, np.int64)
    for document in range(first, end):
        best = -1
        for edge in range(first_edge[document], first_edge[document + 1]):
            if states[target[edge]] != STAYS:
                continue
            if (
                best < 0
                or similarities[edge] > similarities[best]
                or (
                    similarities[edge] == similarities[best]
                    and places[target[edge]] < places[target[best]]
                )
            ):
                best = edge
        partners[document - first] = best
    return partners


@compile_nogil
def _spread_clusters(
    first_edge: NDArray[np.int64], target: NDArray[np.int64], labels: NDArray[np.uint64]
) -> None:
    """Give to each document the lowest label of its connected component."""
    parents = np.arange(len(labels))
    for document in range(len(labels)):
        for edge in range(first_edge[document], first_edge[document + 1]):
            one, other = document, target[edge]
            while parents[one] != one:
                parents[one] = parents[parents[one]]
                one = parents[one]
            while parents[other] != other:
                parents[other] = parents[parents[other]]
                other = parents[other]
            parents[max(one, other)] = min(one, other)
    for document in range(len(labels)):
        root = document
        while parents[root] != root:
            root = parents[root]
        parents[document] = root
        if _is_below(labels[document], labels[root]):
            labels[root] = labels[document]
    for document in range(len(labels)):
        labels[document] = labels[parents[document]]


@compile_nogil
def _is_below(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> bool:
    if one[0] == other[0]:
        return bool(one[1] < other[1])
    return bool(one[0] < other[0])
