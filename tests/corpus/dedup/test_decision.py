import itertools

import numpy as np
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

from trainrig.corpus.dedup.decision import FALLS, STAYS, WORD, Decided, decide
from trainrig.corpus.dedup.evidence import EDGE

COUNT = 14
Pairs = dict[tuple[int, int], float]

pairs = st.dictionaries(
    st.tuples(st.integers(0, COUNT - 1), st.integers(0, COUNT - 1)).filter(lambda p: p[0] < p[1]),
    st.sampled_from([0.8, 0.85, 0.9, 1.0]),
    max_size=40,
)
stretches = st.lists(st.integers(0, 3), min_size=COUNT, max_size=COUNT)
orders = st.permutations(range(COUNT))


def edges_of(pairs: Pairs, order: list[int]) -> np.ndarray:
    """Both ends of each; the rank of document n is its place in `order`, its id n squared."""

    def name(document: int) -> tuple[int, int, int, int]:
        return document, order.index(document) // 2, order.index(document), document**2

    ends = [(a, b, s) for (a, b), s in pairs.items()] + [(b, a, s) for (a, b), s in pairs.items()]
    return np.array([(*name(a), *name(b), s) for a, b, s in ends], EDGE)


def rounds(edges: np.ndarray, stretches: list[int], most: int = 100) -> list[Decided]:
    """What each stretch decides in the last round."""
    numbers = sorted(set(stretches))
    of = np.array(stretches)
    told = None
    for _ in range(most):
        decided = []
        for number in numbers:
            own = edges[of[edges["ref"].astype(int)] == number]
            words = None if told is None else told[of[told["to"].astype(int)] == number]
            decided.append(decide(own, words))
        if not sum(each.unsettled for each in decided):
            return decided
        told = np.concatenate([np.empty(0, WORD), *(each.words for each in decided)])
    raise AssertionError("they never settle")


def fallen(decided: list[Decided]) -> dict[int, tuple[int, float]]:
    found = {}
    for each in decided:
        assert set(each.states.tolist()) <= {STAYS, FALLS}
        for ref, partner in zip(each.refs.tolist(), each.partners.tolist(), strict=True):
            if partner >= 0:
                edge = each.edges[partner]
                found[ref] = (int(edge["other_ref"]), float(edge["similarity"]))
        falls = each.refs[each.states == FALLS].tolist()
        assert [ref for ref in each.refs.tolist() if ref in found] == falls
    return found


def one_after_the_other(pairs: Pairs, order: list[int]) -> dict[int, tuple[int, float]]:
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


@given(pairs, orders, stretches)
@tries(deadline=None)
def test_the_rounds_decide_as_the_plain_loop_does(pairs, order, stretches):
    decided = rounds(edges_of(pairs, order), stretches)
    assert fallen(decided) == one_after_the_other(pairs, order)


@given(pairs, orders, stretches)
@tries(deadline=None)
def test_a_cluster_is_named_after_the_lowest_id_of_all_that_are_linked(pairs, order, stretches):
    clusters = {document: {document} for document in range(COUNT)}
    for a, b in pairs:
        both = clusters[a] | clusters[b]
        for document in both:
            clusters[document] = both
    for each in rounds(edges_of(pairs, order), stretches):
        for ref, cluster in zip(each.refs.tolist(), each.clusters.tolist(), strict=True):
            lowest = min((order.index(member), member**2) for member in clusters[ref])
            assert tuple(cluster) == lowest


def test_the_ends_of_a_chain_are_both_kept():
    edges = edges_of({(0, 1): 0.9, (1, 2): 0.9}, list(range(COUNT)))
    assert fallen(rounds(edges, [0] * COUNT)) == {1: (0, 0.9)}


def test_a_document_falls_to_the_kept_one_it_is_most_like():
    edges = edges_of({(0, 3): 0.8, (1, 3): 0.95, (2, 3): 0.99, (1, 2): 0.9}, list(range(COUNT)))
    # 2 falls to 1, so it cannot be 3's partner, alike as they are.
    assert fallen(rounds(edges, [0] * COUNT)) == {2: (1, 0.9), 3: (1, 0.95)}


def test_one_stretch_needs_one_round_and_a_chain_to_and_fro_as_many_as_it_has_links():
    chain = {(n, n + 1): 0.9 for n in range(9)}
    edges = edges_of(chain, list(range(COUNT)))
    rounds(edges, [0] * COUNT, most=1)
    in_turns = [n % 2 for n in range(COUNT)]
    kept = set(range(10)) - set(fallen(rounds(edges, in_turns, most=11)))
    assert kept == {0, 2, 4, 6, 8}


def test_who_fell_early_still_hears_of_a_more_similar_one_that_is_kept_late():
    # 6 falls to 5 at once; that 4 is kept is only known at the end of a chain to and fro.
    pairs = {(n, n + 1): 0.9 for n in range(4)} | {(5, 6): 0.8, (4, 6): 1.0}
    edges = edges_of(pairs, list(range(COUNT)))
    for end in ("", "other_"):
        # The lowest id lies in the middle, so clusters are agreed on before the last is decided.
        edges[f"{end}id0"] = np.where(edges[f"{end}ref"] == 2, 0, edges[f"{end}id0"] + 1)
    in_turns = [0, 1, 0, 1, 0, 1, 1] + [0] * (COUNT - 7)
    assert fallen(rounds(edges, in_turns))[6] == (4, 1.0)


@given(pairs, orders, stretches, st.randoms(use_true_random=False))
@tries(deadline=None)
def test_the_decision_does_not_depend_on_the_order_of_pairs(pairs, order, stretches, random):
    edges = edges_of(pairs, order)
    shuffled = edges[random.sample(range(len(edges)), len(edges))]
    assert fallen(rounds(shuffled, stretches)) == fallen(rounds(edges, stretches))


@given(pairs, orders, stretches)
@tries(deadline=None)
def test_every_fallen_document_has_a_kept_partner_of_its_own(pairs, order, stretches):
    fell = fallen(rounds(edges_of(pairs, order), stretches))
    for document, (partner, similarity) in fell.items():
        assert partner not in fell
        assert pairs[min(document, partner), max(document, partner)] == similarity
    kept = set(range(COUNT)) - set(fell)
    assert not any(pair in pairs for pair in itertools.combinations(sorted(kept), 2))
