from collections import Counter

import pytest

from trainrig.train.elastic.restart_policy import Node
from trainrig.train.elastic.warm_actors import idle_beyond_need

FREE, OTHER = Node("free", 2, places=2), Node("other", 1, places=1)
OURS, HALF = Node("ours", 1, places=1), Node("half", 1, places=2)


@pytest.mark.parametrize(
    ("nodes", "ours", "most", "beyond"),
    [
        ([FREE, OTHER], {}, 2, {"other"}),  # the first has room for all
        ([FREE, OTHER], {}, 3, set()),
        ([OURS, FREE], {"ours": 1}, 1, {"free"}),
        ([OURS, FREE], {"ours": 1}, 2, set()),
        ([HALF, FREE], {}, 1, {"free"}),
        ([HALF], {}, 0, set()),  # somebody else is there, so it stays anyway
        ([Node("free", 2, draining=True, places=2)], {}, 2, {"free"}),
    ],
)
def test_nodes_that_a_run_would_not_grow_onto_are_left(nodes, ours, most, beyond):
    assert idle_beyond_need(nodes, Counter(ours), most) == beyond
