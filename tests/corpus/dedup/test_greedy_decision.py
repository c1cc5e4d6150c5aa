import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

from trainrig.corpus.dedup.document_refs import (
    DOCUMENT_KEY,
    deduplicate_names,
    find_remote_documents,
)
from trainrig.corpus.dedup.greedy_decision import FALLS, STAYS, build_edges, decide
from trainrig.corpus.dedup.verified_pairs import PAIR

COUNT = 14
Pairs = dict[tuple[int, int], float]

pairs = st.dictionaries(
    st.tuples(st.integers(0, COUNT - 1), st.integers(0, COUNT - 1)).filter(lambda p: p[0] < p[1]),
    st.sampled_from([0.8, 0.85, 0.9, 1.0]),
    max_size=40,
)
partitions = st.lists(st.integers(0, 3), min_size=COUNT, max_size=COUNT)
orders = st.permutations(range(COUNT))


@dataclass(frozen=True)
class KeyedPairs:
    """Pairs, with the keys of the documents on both sides; `partitions` are computed later."""

    pairs: np.ndarray
    a: np.ndarray
    b: np.ndarray


@dataclass(frozen=True)
class Decision:
    state: int
    repeated: tuple[int, int]
    similarity: float
    cluster: tuple[int, int]


def make_pairs(pairs: Pairs, order: list[int], ids: list[int] | None = None) -> KeyedPairs:
    """Return pairs of documents with keys that follow `order`.

    The rank of document n is half its position in `order`, its id is that position, then n squared.
    With `ids`, the rank is the whole position, and the id begins with the document's position in
    `ids`.
    """

    def name(n: int) -> tuple[int, ...]:
        place = order.index(n)
        return make_ref(n), *((place // 2, place) if ids is None else (place, ids.index(n))), n**2

    def names(documents: list[int]) -> np.ndarray:
        return np.array([name(n) for n in documents], DOCUMENT_KEY)

    a = names([a for a, _ in pairs])
    b = names([b for _, b in pairs])
    rows = [(*ends, s) for *ends, s in zip(a["ref"], b["ref"], pairs.values(), strict=True)]
    return KeyedPairs(np.array(rows, PAIR), a, b)


def make_ref(document: int) -> int:
    """Return a reference whose split index is the document, so that partitions are free."""
    return document << 32


def rounds(given: KeyedPairs, partitions: list[int], most: int = 100) -> dict[int, Decision]:
    """Return the decision on each document after the last round."""
    edges, later, earlier = build_edges(given.pairs, given.a, given.b)
    numbers = range(max(partitions) + 1)
    # Split index n belongs to document `split_indexes[n]`, and a partition's are neighbours.
    split_indexes = sorted(range(COUNT), key=partitions.__getitem__)
    moved = np.argsort(split_indexes).astype(np.uint64) << np.uint64(32)
    bounds = np.searchsorted(sorted(partitions), [*numbers, len(numbers)])

    def move(refs: np.ndarray) -> np.ndarray:
        return moved[(refs >> np.uint64(32)).astype(np.int64)]

    for rows, name in ((edges, "later"), (edges, "earlier"), (later, "ref"), (earlier, "ref")):
        rows[name] = move(rows[name])
    partition_of = np.array(sorted(partitions))

    def home(refs: np.ndarray) -> np.ndarray:
        return partition_of[(refs >> np.uint64(32)).astype(np.int64)]

    remote = find_remote_documents(edges["later"], edges["earlier"], partition_of)
    make_messages = None
    cluster_messages = None
    for _ in range(most):
        decided = []
        for number in numbers:
            mine = home(edges["later"]) == number
            elsewhere = home(earlier["ref"]) == number
            names = np.concatenate([later[mine], earlier[mine], earlier[elsewhere]])
            state_messages = None if make_messages is None else make_messages[number]
            heard = (
                []
                if cluster_messages is None
                else [cluster_messages[home(cluster_messages["about"]) == number]]
            )
            own = bounds[number : number + 2].astype(np.uint64) << np.uint64(32)
            decided.append(
                decide(
                    deduplicate_names(names),
                    edges[mine],
                    own,
                    state_messages,
                    functools.partial(list, heard),
                )
            )
        if not sum(decisions.unsettled for decisions in decided):
            return {
                split_indexes[row[0] >> 32]: Decision(*row[1:])
                for decisions in decided
                for row in zip(
                    decisions.refs.tolist(),
                    decisions.states.tolist(),
                    map(tuple, decisions.repeated.tolist()),
                    decisions.similarities.tolist(),
                    map(tuple, decisions.clusters.tolist()),
                    strict=True,
                )
            }
        cluster_messages = np.concatenate([decisions.cluster_messages for decisions in decided])
        make_messages = [
            np.concatenate(
                [
                    decisions.make_messages(refs[home(refs) == nth])
                    for nth, decisions in enumerate(decided)
                    for refs in [remote["ref"][remote["reader"] == number]]
                ]
            )
            for number in numbers
        ]
    raise AssertionError("they never settle")


def find_removed(decided: dict[int, Decision]) -> dict[int, tuple[int, float]]:
    """Return the partner and the similarity of each document that was removed."""
    found = {}
    for document, state_messages in decided.items():
        assert state_messages.state in (STAYS, FALLS)
        assert (state_messages.state == FALLS) == (
            state_messages.similarity == state_messages.similarity
        )
        if state_messages.state == FALLS:
            found[document] = (math.isqrt(state_messages.repeated[1]), state_messages.similarity)
    return found


def decide_in_order(pairs: Pairs, order: list[int]) -> dict[int, tuple[int, float]]:
    fell: dict[int, tuple[int, float]] = {}
    likeness = pairs | {(b, a): s for (a, b), s in pairs.items()}
    for place, document in enumerate(order):
        kept = [
            (-likeness[before, document], order.index(before))
            for before in order[:place]
            if before not in fell and (before, document) in likeness
        ]
        if kept:
            similarity, before = min(kept)
            fell[document] = (order[before], -similarity)
    return fell


@pytest.mark.slow
@given(pairs, orders, partitions)
@tries(deadline=None)
def test_the_rounds_decide_as_the_plain_loop_does(pairs, order, partitions):
    decided = rounds(make_pairs(pairs, order), partitions)
    assert find_removed(decided) == decide_in_order(pairs, order)


@pytest.mark.slow
@given(pairs, orders, orders, partitions)
@tries(deadline=None, max_examples=300)
def test_a_cluster_is_named_after_the_lowest_id_of_all_that_are_linked(
    pairs, order, ids, partitions
):
    clusters = {document: {document} for document in range(COUNT)}
    for a, b in pairs:
        both = clusters[a] | clusters[b]
        for document in both:
            clusters[document] = both
    for document, state_messages in rounds(make_pairs(pairs, order, ids), partitions).items():
        lowest = min((ids.index(member), member**2) for member in clusters[document])
        assert state_messages.cluster == lowest


def test_the_lowest_id_reaches_a_cluster_after_all_decisions():
    # In each partition, one document is removed at once, in favour of one that stays. Links between
    # removed documents carry the lowest id from the first partition to the last, one partition per
    # round, or back.
    partitions = [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 6]
    pairs = {(n, n + 6): 0.9 for n in range(6)} | {(n, n + 1): 0.8 for n in range(6, 11)}
    order = list(range(COUNT))
    for ids in (order, order[::-1]):
        found = rounds(make_pairs(pairs, order, ids), partitions)
        lowest = min(range(12), key=ids.index)
        assert {state_messages.cluster for state_messages in found.values()} == {
            (ids.index(lowest), lowest**2)
        }


def test_the_ends_of_a_chain_are_both_kept():
    given = make_pairs({(0, 1): 0.9, (1, 2): 0.9}, list(range(COUNT)))
    assert find_removed(rounds(given, [0] * COUNT)) == {1: (0, 0.9)}


def test_a_document_is_removed_for_the_most_similar_kept_one():
    given = make_pairs({(0, 3): 0.8, (1, 3): 0.95, (2, 3): 0.99, (1, 2): 0.9}, list(range(COUNT)))
    # 2 is removed for 1, so it cannot be 3's partner, although they are similar.
    assert find_removed(rounds(given, [0] * COUNT)) == {2: (1, 0.9), 3: (1, 0.95)}


def test_one_partition_needs_one_round_and_an_alternating_chain_one_per_link():
    chain = {(n, n + 1): 0.9 for n in range(9)}
    given = make_pairs(chain, list(range(COUNT)))
    rounds(given, [0] * COUNT, most=1)
    in_turns = [n % 2 for n in range(COUNT)]
    kept = set(range(10)) - set(find_removed(rounds(given, in_turns, most=11)))
    assert kept == {0, 2, 4, 6, 8}


def test_an_early_removal_still_learns_of_a_more_similar_document_kept_late():
    # 6 is removed for 5 at once. That 4 is kept is known only after a chain that alternates between
    # the partitions.
    pairs = {(n, n + 1): 0.9 for n in range(4)} | {(5, 6): 0.8, (4, 6): 1.0}
    given = make_pairs(pairs, list(range(COUNT)))
    for names in (given.a, given.b):
        # The document with the lowest id is in the middle, so clusters are final before the last
        # decision.
        names["id0"] = np.where(names["ref"] == make_ref(2), 0, names["id0"] + 1)
    in_turns = [0, 1, 0, 1, 0, 1, 1] + [0] * (COUNT - 7)
    assert find_removed(rounds(given, in_turns))[6] == (4, 1.0)


@given(pairs, orders, partitions, st.randoms(use_true_random=False))
@tries(deadline=None)
def test_the_decision_does_not_depend_on_the_order_of_pairs(pairs, order, partitions, random):
    items = list(pairs.items())
    random.shuffle(items)
    shuffled = {pair[:: random.choice([1, -1])]: likeness for pair, likeness in items}
    expected = find_removed(rounds(make_pairs(pairs, order), partitions))
    assert find_removed(rounds(make_pairs(shuffled, order), partitions)) == expected


@given(pairs, orders, partitions)
@tries(deadline=None)
def test_every_removed_document_has_a_kept_partner(pairs, order, partitions):
    fell = find_removed(rounds(make_pairs(pairs, order), partitions))
    for document, (partner, similarity) in fell.items():
        assert partner not in fell
        assert pairs[min(document, partner), max(document, partner)] == similarity
    kept = set(range(COUNT)) - set(fell)
    assert not any(pair in pairs for pair in itertools.combinations(sorted(kept), 2))
