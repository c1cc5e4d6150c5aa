"""Assignment of ranks to workers: groups that communicate much share a node."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.parallel.layout import DDP, FSDP, HSDP
from trainrig.ray_runtime import ray_private
from trainrig.ray_runtime.node_placement import AutoscalerRequest, name_actor, order_by_node


@st.composite
def draw_clusters(draw, whole_groups=False):
    """Draw nodes with the workers of some replicas, in any order, and nested group sizes."""
    tensor = draw(st.integers(1, 4))
    middle = tensor * draw(st.integers(1, 3))
    replica = middle * draw(st.integers(1, 3))
    if whole_groups:
        groups = draw(st.integers(1, 4)) * replica // tensor
        places = draw(st.lists(st.integers(0, 3), min_size=groups, max_size=groups))
        places = [place for place in places for _ in range(tensor)]
    else:
        workers = draw(st.integers(1, 4)) * replica
        places = draw(st.lists(st.integers(0, 3), min_size=workers, max_size=workers))
    places = draw(st.permutations(places))
    return [f"node{place}" for place in places], (tensor, middle, replica)


def count_inside(nodes, size):
    """Count the groups of `size` neighbours that are on one node."""
    firsts = range(0, len(nodes), size)
    return sum(len(set(nodes[first : first + size])) == 1 for first in firsts)


@given(draw_clusters())
def test_as_many_groups_of_each_size_are_on_one_node_as_can_be(cluster):
    nodes, sizes = cluster
    order = order_by_node(nodes, sizes)
    assert sorted(order) == list(range(len(nodes)))
    placed = [nodes[worker] for worker in order]
    for size in sizes:
        assert count_inside(placed, size) == sum(n // size for n in Counter(nodes).values())


@given(draw_clusters(whole_groups=True))
def test_every_tensor_group_is_on_one_node_where_each_has_whole_groups(cluster):
    """A pipeline then spans nodes."""
    nodes, sizes = cluster
    placed = [nodes[worker] for worker in order_by_node(nodes, sizes)]
    assert count_inside(placed, sizes[0]) == len(nodes) // sizes[0]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_workers_of_whole_replicas_stay_as_ray_has_them(places):
    nodes = [f"node{place}" for place in sorted(places)]
    assert order_by_node(nodes, (1, 1, 1)) == list(range(len(nodes)))


def test_a_group_is_made_of_what_is_left_of_several_nodes():
    """Nodes of three and five workers hold three pairs, and one more pair spans both nodes."""
    assert order_by_node(["a"] * 3 + ["b"] * 5, (2, 2, 2)) == [0, 1, 3, 4, 5, 6, 2, 7]


@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        (FSDP(), (1, 1, 1)),
        (FSDP(tensor={"ranks": 2}, pipeline={"ranks": 2}), (2, 2, 4)),
        (FSDP(tensor={"ranks": 2}, context={"kind": "Gathered", "ranks": 2}), (2, 4, 4)),
        (FSDP(pipeline={"ranks": 2}), (1, 1, 2)),
        # Ranks that share rows are copies of each other then, further apart than slices.
        (DDP(tensor={"ranks": 2}, context={"kind": "Gathered", "ranks": 2}), (2, 2, 4)),
        (HSDP(replicas=2, tensor={"ranks": 2}, expert={"ranks": 2}), (2, 4, 4)),
    ],
)
def test_a_layout_says_which_ranks_are_neighbours(layout, sizes):
    assert layout.nest(8) == sizes


def test_a_request_is_sent_when_its_number_changes_and_not_again_at_once(monkeypatch):
    """Ray Train requests the nodes of its own workers, so the rest changes with each group."""
    sent = []
    stand_in = lambda requests, resources, seconds: sent.append(len(resources))  # noqa: E731
    monkeypatch.setattr(ray_private.NodeRequests, "send", stand_in)
    request = AutoscalerRequest()
    for workers in (3, 3, 1, 1, 3):
        request.request(workers, {"CPU": 1})
    assert sent == [3, 1, 3]


def test_names_of_actors_tell_what_they_are_for_and_never_collide():
    names = {name_actor("coordinator", "my run/2") for _ in range(50)}
    assert len(names) == 50
    assert all(name.startswith("coordinator-my-run-2-") for name in names)
