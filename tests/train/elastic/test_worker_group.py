from collections import Counter

import pytest

from trainrig.train.elastic.restart_policy import WorkerNode
from trainrig.train.elastic.worker_group import find_idle_surplus

FREE = WorkerNode("free", 2, slots=2)
OTHER = WorkerNode("other", 1, slots=1)
OURS = WorkerNode("ours", 1, slots=1)
HALF = WorkerNode("half", 1, slots=2)


def test_a_node_that_a_run_keeps_off_is_left_and_another_is_not():
    nodes = [OTHER, FREE]
    assert find_idle_surplus(nodes, Counter(), 1) == {"free"}
    assert find_idle_surplus(nodes, Counter(), 1, frozenset({"other"})) == {"other"}


@pytest.mark.parametrize(
    ("nodes", "ours", "most", "beyond"),
    [
        ([FREE, OTHER], {}, 2, {"other"}),  # all fit on the first
        ([FREE, OTHER], {}, 3, set()),
        ([OURS, FREE], {"ours": 1}, 1, {"free"}),
        ([OURS, FREE], {"ours": 1}, 2, set()),
        ([HALF, FREE], {}, 1, {"free"}),
        ([HALF], {}, 0, set()),  # another job keeps that node anyway
        ([WorkerNode("free", 2, draining=True, slots=2)], {}, 2, {"free"}),
    ],
)
def test_nodes_that_a_run_would_not_grow_onto_are_left(nodes, ours, most, beyond):
    assert find_idle_surplus(nodes, Counter(ours), most) == beyond
