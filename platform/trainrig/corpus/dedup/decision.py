"""Who falls: greedy in the keep order, over verified pairs that lie in stretches.

A document falls only if it has a verified pair with a *kept* document before it in the keep order.
So a chain A~B~C without A~C keeps A and C, and nothing falls for being like something that is gone.

One after the other that is a loop over all documents. Here each stretch decides as much as it can,
tells the others what became of those that they have pairs with, and looks again: a parallel greedy
independent set (Blelloch, Fineman and Shun 2012, arXiv:1202.3205), whose rounds are few unless
chains run to and fro, and whose answer is that of the loop. A round follows from what the stretches
told in the round before and nothing else. The same rounds carry the lowest id of each cluster to
all its documents.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compiled
from trainrig.corpus.dedup.runs import Rows

UNKNOWN, STAYS, FALLS = 0, 1, 2

# What became of `about`, told to a document that has a pair with it.
WORD = np.dtype(
    [("to", "u8"), ("about", "u8"), ("state", "u8"), ("cluster0", "u8"), ("cluster1", "u8")]
)


@dataclass(frozen=True)
class Decided:
    """The documents of one stretch that have pairs, as far as they are decided."""

    refs: NDArray[np.uint64]
    ids: NDArray[np.uint64]  # [documents, 2]
    states: NDArray[np.int64]
    partners: NDArray[np.int64]  # the edge to the kept document that it falls to; -1
    clusters: NDArray[np.uint64]  # [documents, 2] id
    edges: Rows  # by ref, then the other's ref
    words: Rows  # for other stretches
    unsettled: int  # documents not decided, and words not agreed on


def decide(edges: Rows, told: Rows | None) -> Decided:
    """One stretch's round, after what it was `told`; None before anybody spoke."""
    edges = np.take(edges, np.lexsort((edges["other_ref"], edges["ref"])))
    ref, other = _column(edges, "ref"), _column(edges, "other_ref")
    starts = np.flatnonzero(np.concatenate([[True], ref[1:] != ref[:-1]]))[: len(ref)]
    nodes = ref[starts]
    first_edge = np.append(starts, len(ref))
    target = np.searchsorted(nodes, other)
    target[target == len(nodes)] = 0
    inside = nodes[target] == other if len(nodes) else np.zeros(0, bool)
    target = np.where(inside, target, -1)

    places, other_places = _keep_places(edges)
    ids = np.stack([edges["id0"][starts], edges["id1"][starts]], axis=1)
    states_told = np.zeros(len(edges), np.int64)
    clusters_told = np.stack([edges["other_id0"], edges["other_id1"]], axis=1)
    if told is not None:
        # Each pair that leaves the stretch is spoken of once, so the two lists are parallel.
        told = np.take(told, np.lexsort((told["about"], told["to"])))
        states_told[~inside] = told["state"]
        clusters_told[~inside] = np.stack([told["cluster0"], told["cluster1"]], axis=1)

    order = np.argsort(places[starts], kind="stable")
    earlier = other_places < places
    states = _sweep(order, first_edge, target, earlier, states_told)
    partners = _partners(
        first_edge,
        target,
        earlier,
        states_told,
        states,
        np.ascontiguousarray(edges["similarity"]),
        other_places,
    )
    clusters = _clusters(first_edge, target, ids, clusters_told)
    own = np.repeat(np.arange(len(nodes)), np.diff(first_edge))
    leaving = own[~inside]
    words = np.empty(len(leaving), WORD)
    words["to"], words["about"] = other[~inside], ref[~inside]
    words["state"] = states[leaving]
    words["cluster0"], words["cluster1"] = clusters[leaving].T
    agreed = (clusters_told[~inside] == clusters[leaving]).all(axis=1)
    agreed &= states_told[~inside] != UNKNOWN
    unsettled = int(np.count_nonzero(states == UNKNOWN) + np.count_nonzero(~agreed))
    return Decided(nodes, ids, states, partners, clusters, edges, words, unsettled)


def _column(rows: Rows, name: str) -> NDArray[np.uint64]:
    return np.ascontiguousarray(rows[name])


def _keep_places(edges: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[edges] the place in the keep order of either end, among all that these edges have."""
    every = {
        name: np.concatenate([edges[name], edges[f"other_{name}"]])
        for name in ("ref", "rank", "id0", "id1")
    }
    by_ref = np.argsort(every["ref"], kind="stable")
    in_order = every["ref"][by_ref]
    fresh = np.ones(len(in_order), bool)
    fresh[1:] = in_order[1:] != in_order[:-1]
    one_each = by_ref[fresh]
    keys = [every[name][one_each] for name in ("ref", "id1", "id0", "rank")]
    place = np.empty(len(one_each), np.int64)
    place[np.lexsort(keys)] = np.arange(len(one_each))
    places = np.empty(len(in_order), np.int64)
    places[by_ref] = place[np.cumsum(fresh) - 1]
    return places[: len(edges)], places[len(edges) :]


@compiled
def _sweep(
    order: NDArray[np.int64],
    first_edge: NDArray[np.int64],
    target: NDArray[np.int64],
    earlier: NDArray[np.bool_],
    told: NDArray[np.int64],
) -> NDArray[np.int64]:
    """[documents] the state of each, looked at once in the keep order.

    Args:
        order: [documents] their indices, in the keep order.
        first_edge: [documents + 1] where the edges of each begin.
        target: [edges] index of the other document; -1 where it is not in this stretch.
        earlier: [edges] whether the other comes before in the keep order.
        told: [edges] state of the other, where it is not in this stretch.
    """
    states = np.zeros(len(order), np.int64)
    for document in order:
        unknown = False
        state = STAYS
        for edge in range(first_edge[document], first_edge[document + 1]):
            if earlier[edge]:
                other = states[target[edge]] if target[edge] >= 0 else told[edge]
                if other == STAYS:
                    state = FALLS
                elif other == UNKNOWN:
                    unknown = True
        states[document] = UNKNOWN if unknown and state == STAYS else state
    return states


@compiled
def _partners(
    first_edge: NDArray[np.int64],
    target: NDArray[np.int64],
    earlier: NDArray[np.bool_],
    told: NDArray[np.int64],
    states: NDArray[np.int64],
    similarities: NDArray[np.float64],
    other_places: NDArray[np.int64],
) -> NDArray[np.int64]:
    """[documents] the edge to the most similar kept one before it, the first of equals; or -1."""
    partners = np.full(len(states), -1, np.int64)
    for document in range(len(states)):
        for edge in range(first_edge[document], first_edge[document + 1]):
            other = states[target[edge]] if target[edge] >= 0 else told[edge]
            if not earlier[edge] or other != STAYS:
                continue
            best = partners[document]
            if (
                best < 0
                or similarities[edge] > similarities[best]
                or (
                    similarities[edge] == similarities[best]
                    and other_places[edge] < other_places[best]
                )
            ):
                partners[document] = edge
    return partners


@compiled
def _clusters(
    first_edge: NDArray[np.int64],
    target: NDArray[np.int64],
    ids: NDArray[np.uint64],
    told: NDArray[np.uint64],
) -> NDArray[np.uint64]:
    """[documents, 2] the lowest id known of its connected component: of this stretch, or told."""
    parents = np.arange(len(ids))
    for document in range(len(ids)):
        for edge in range(first_edge[document], first_edge[document + 1]):
            if target[edge] >= 0:
                one, other = document, target[edge]
                while parents[one] != one:
                    parents[one] = parents[parents[one]]
                    one = parents[one]
                while parents[other] != other:
                    parents[other] = parents[parents[other]]
                    other = parents[other]
                parents[max(one, other)] = min(one, other)
    clusters = ids.copy()
    for document in range(len(ids)):
        root = document
        while parents[root] != root:
            root = parents[root]
        parents[document] = root
        if _below(ids[document], clusters[root]):
            clusters[root] = ids[document]
        for edge in range(first_edge[document], first_edge[document + 1]):
            if target[edge] < 0 and _below(told[edge], clusters[root]):
                clusters[root] = told[edge]
    for document in range(len(ids)):
        clusters[document] = clusters[parents[document]]
    return clusters


@compiled
def _below(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> bool:
    if one[0] == other[0]:
        return bool(one[1] < other[1])
    return bool(one[0] < other[0])
