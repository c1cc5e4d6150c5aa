"""Choice of the duplicates to drop: greedy, in the keep order, over verified pairs.

A document is dropped only if it has a verified pair with a *kept* document before it in the keep
order. So a chain A~B~C without A~C keeps A and C: no document is dropped for resembling one that is
itself dropped.

The sequential algorithm is a loop over all documents. Here each partition decides as many documents
as it can, sends the states of its documents to the partitions that have pairs with them, and
repeats. This is a parallel greedy independent set (Blelloch, Fineman and Shun 2012,
arXiv:1202.3205). It needs few rounds unless chains alternate between partitions, and gives the same
result as the loop. A round depends only on the messages of the round before. The same rounds also
spread the lowest id of each cluster to all its documents.

A pair is stored in the partition of its *later* document. The earlier document may be a *remote
document* of another partition. A partition receives one state message per round about each remote
document, however many pairs it has, and returns its label for the document's cluster.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from trainrig.corpus.array_types import Bools, Float64s, Int64s, UInt8s, UInt64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.dedup.sorted_runs import Rows

UNKNOWN = 0
STAYS = 1
FALLS = 2

# A pair for the decision, as refs: `later` is dropped if `earlier` is kept.
EDGE = np.dtype([("later", "u8"), ("earlier", "u8"), ("similarity", "f8")])
# A cluster message holds a reader's cluster label for a remote document. A state message, from the
# document's own partition, adds the document's state.
CLUSTER_MESSAGE = np.dtype([("about", "u8"), ("cluster0", "u8"), ("cluster1", "u8")])
STATE_MESSAGE = np.dtype([*CLUSTER_MESSAGE.descr, ("state", "u1")])


def build_edges(pairs: Rows, a: Rows, b: Rows) -> tuple[Rows, Rows, Rows]:
    """Build the EDGE rows of `pairs`, and DOCUMENT_KEYs of their later and earlier documents.

    `a` and `b` are the DOCUMENT_KEY rows of the two documents of each pair.
    """
    swapped = _is_earlier(a, b)
    later = np.where(swapped, b, a)
    earlier = np.where(swapped, a, b)
    rows = np.empty(len(pairs), EDGE)
    rows["later"] = later["ref"]
    rows["earlier"] = earlier["ref"]
    rows["similarity"] = pairs["similarity"]
    return rows, later, earlier


def _is_earlier(one: Rows, other: Rows) -> Bools:
    """Return whether `one` comes before `other` in the keep order: by rank, then id, then ref."""
    before = np.zeros(len(one), bool)
    for name in ("ref", "id1", "id0", "rank"):
        before = (one[name] < other[name]) | ((one[name] == other[name]) & before)
    return before


@dataclass(frozen=True)
class DecidedPartition:
    """Decisions of one round on the documents of a partition that have pairs."""

    refs: UInt64s  # ascending
    states: UInt8s
    # [documents, 2] id of the kept document that each dropped one repeats, else 0, 0
    repeated: UInt64s
    similarities: Float64s  # similarity to that document, else NaN
    clusters: UInt64s  # [documents, 2] lowest known id of each document's cluster
    cluster_messages: Rows  # CLUSTER_MESSAGE about each remote document
    unsettled: int  # number of undecided documents, and of clusters without agreement

    def make_messages(self, about: UInt64s) -> Rows:
        """Build the STATE_MESSAGE rows about the documents `about` of this partition."""
        at = np.searchsorted(self.refs, about)
        rows = _build_messages(about, self.clusters[at], STATE_MESSAGE)
        rows["state"] = self.states[at]
        return rows


def decide(
    names: Rows,
    edges: Rows,
    own: UInt64s,
    state_messages: Rows | None,
    cluster_messages: Callable[[], Iterable[Rows]],
) -> DecidedPartition:
    """Run one round of the decision in one partition.

    Args:
        names: DOCUMENT_KEY of all documents in the edges, and of the partition's own documents
            that are remote documents of other partitions, sorted by ref.
        edges: EDGE rows whose `later` document lies in the partition.
        own: [2] the first ref of the partition, and the ref after its last.
        state_messages: STATE_MESSAGE about all its remote documents; None in the first round.
        cluster_messages: function that yields the CLUSTER_MESSAGE rows about its own documents, in
            pieces; called twice.
    """
    refs = np.ascontiguousarray(names["ref"])
    ids = np.stack([names["id0"], names["id1"]], axis=1)
    here = slice(*np.searchsorted(refs, own).tolist())
    # positions in the keep order
    order = np.lexsort([names[name] for name in ("ref", "id1", "id0", "rank")])
    del names
    edges = np.take(edges, np.lexsort((edges["earlier"], edges["later"])))
    first_edge = np.append(np.searchsorted(edges["later"], refs), len(edges))
    target = np.searchsorted(refs, edges["earlier"])
    similarities = np.ascontiguousarray(edges["similarity"])
    del edges

    states = np.zeros(len(refs), np.uint8)
    labels = ids.copy()
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
    refs: UInt64s,
    here: slice,
    states: UInt8s,
    labels: UInt64s,
    state_messages: Rows | None,
    cluster_messages: Callable[[], Iterable[Rows]],
) -> int:
    """Return the number of documents that are undecided or on whose cluster partitions disagree."""
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


def _build_messages(refs: UInt64s, clusters: UInt64s, kind: "np.dtype[np.void]") -> Rows:
    rows = np.empty(len(refs), kind)
    rows["about"] = refs
    rows["cluster0"], rows["cluster1"] = clusters.T
    return rows


def _cluster(rows: Rows) -> UInt64s:
    return np.stack([rows["cluster0"], rows["cluster1"]], axis=1)


def _are_equal(one: UInt64s, other: UInt64s) -> Bools:
    return np.asarray((one == other).all(axis=1))


@compile_nogil
def _lower(labels: UInt64s, at: Int64s, others: UInt64s) -> None:
    """Lower each label `at` a given position to the one in `others`, if that is lower."""
    for nth in range(len(at)):
        if _is_below(others[nth], labels[at[nth]]):
            labels[at[nth]] = others[nth]


@compile_nogil
def _sweep(
    order: Int64s, first: int, end: int, first_edge: Int64s, target: Int64s, states: UInt8s
) -> None:
    """Decide the documents `first` up to `end`, in a single pass over the keep order.

    Args:
        order: [documents] indices of documents in the keep order, remote documents included.
        first: index of the first document to decide.
        end: index after the last document to decide.
        first_edge: [documents + 1] index of each document's first edge.
        target: [edges] index of the earlier document.
        states: [documents] states, already set for remote documents; updated in place.
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
    order: Int64s,
    first: int,
    end: int,
    first_edge: Int64s,
    target: Int64s,
    states: UInt8s,
    similarities: Float64s,
) -> Int64s:
    """Return each document's edge to the kept document that is most similar to it, or -1.

    The result covers the documents `first` up to `end`. Of equally similar documents the first in
    the keep order is chosen.
    """
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
def _spread_clusters(first_edge: Int64s, target: Int64s, labels: UInt64s) -> None:
    """Set the label of each document to the lowest label of its connected component."""
    parents = np.arange(len(labels))
    for document in range(len(labels)):
        for edge in range(first_edge[document], first_edge[document + 1]):
            one = document
            other = target[edge]
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
def _is_below(one: UInt64s, other: UInt64s) -> bool:
    if one[0] == other[0]:
        return bool(one[1] < other[1])
    return bool(one[0] < other[0])
