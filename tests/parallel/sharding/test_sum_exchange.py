"""Gradient sums: identical bits, whichever ranks add, and on however many levels."""

import pytest
from support.link_bytes import count_bytes_by_rank

SHAPES = [(8, 8), (11, 8), (12, 3), (5, 5), (16, 16)]  # micro-batches, virtual workers


def list_cases(world, shapes):
    """Return all ways to sum on this many ranks as (why, case)."""
    found = []
    for count, virtual in shapes:
        shape = {"micro_batches": count, "virtual": virtual}
        found += [("flat", shape), ("by micro-batch", shape | {"by_micro_batch": True})]
        for more in ({}, {"by_micro_batch": True}):
            if world % 2 == 0:
                found.append(("nodes of 2", shape | more | {"of_a_node": 2}))
                found.append(("2 copies", shape | more | {"copies": 2}))
            if world % 4 == 0:
                found.append(("nodes of 4", shape | more | {"of_a_node": 4}))
                found.append(("4 copies", shape | more | {"copies": 4}))
        found.append(("copies alone", shape | {"copies": world}))
    return found


@pytest.fixture(scope="module")
def alone(ranks):
    """Return the result of one rank, by shape."""
    shapes = [{"micro_batches": count, "virtual": virtual} for count, virtual in SHAPES]
    (found,) = ranks(1, "exact_sums", cases=shapes)
    return dict(zip(SHAPES, found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "shapes"),
    [(4, [(11, 8)]), (3, [(5, 5)])]
    + [pytest.param(world, SHAPES, marks=pytest.mark.slow) for world in (2, 3)]
    + [pytest.param(world, [(11, 8), (5, 5)], marks=pytest.mark.slow) for world in (4, 6)]
    + [pytest.param(8, [(12, 3)], marks=pytest.mark.slow)]
    + [pytest.param(world, SHAPES, marks=pytest.mark.soak) for world in range(4, 9)],
)
def test_the_bits_are_those_of_one_rank(world, shapes, alone, mortal_ranks):
    """The cases have uneven assignments, idle ranks, nodes of several ranks, and replicas."""
    told = list_cases(world, shapes)
    found = mortal_ranks(world, "exact_sums", cases=[case for _, case in told])
    for number, (why, case) in enumerate(told):
        one = alone[case["micro_batches"], case["virtual"]]
        for rank in found:
            answer = rank[number]
            assert (answer["digest"], answer["norm"]) == (one["digest"], one["norm"]), (why, case)
            assert answer["squared"] == pytest.approx(one["squared"], rel=1e-12), (why, case)
        if "copies" not in case:
            # An idle rank sends parts without bytes, which the model leaves out.
            sent = [{to: n for to, n in rank[number]["to"].items() if n} for rank in found]
            assert sent == plan_bytes(world, **case), (why, case)


def plan_bytes(world, micro_batches, virtual, of_a_node=1, by_micro_batch=False):
    """Return the bytes that each rank sends to each other in `exact_sums`, as predicted."""
    rows = [(6, 6), (9, 6), (9, 1), (4, 9), (4, 1)]  # rows of weights and biases, and their lengths
    size = sum(-(-count // world) * world * length * 4 for count, length in rows)  # even slices
    sent = count_bytes_by_rank(size, micro_batches, virtual, world, of_a_node, by_micro_batch)
    found = []
    for rank, (inside, across) in enumerate(sent):
        place = rank % of_a_node
        node = rank // of_a_node
        to = {}
        for other in range(world):
            within = other // of_a_node == node
            if of_a_node in (1, world):
                bytes_ = (inside + across) / (world - 1)
            elif within:
                bytes_ = inside / (of_a_node - 1)
            else:  # to ranks with the same local rank on other nodes
                bytes_ = across / (world // of_a_node - 1) * (other % of_a_node == place)
            if other != rank and bytes_:
                to[other] = bytes_
        found.append(to)
    return found
