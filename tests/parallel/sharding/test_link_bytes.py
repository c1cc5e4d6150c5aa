import pytest

from trainrig.parallel.sharding.sum_tree import reduce_scatter_bytes, sum_bytes


@pytest.mark.parametrize("ranks", [16, 64, 1024])
def test_bytes_equal_those_of_a_hierarchical_reduce_scatter(ranks):
    """The micro-batches of a node are one subtree here; docs/evidence/scale.md has the table."""
    for micro_batches in (ranks, 4 * ranks):
        exact = sum_bytes(1.0, micro_batches, ranks, ranks, 8)
        plain = reduce_scatter_bytes(1.0, ranks, 8)
        assert exact.across == pytest.approx(plain.across)
        assert exact.inside == pytest.approx(plain.inside)


def test_a_sum_without_levels_carries_that_many_times_as_much_as_a_node_has_ranks():
    flat = sum_bytes(1.0, 64, 64, 64, 1)
    assert 8 * flat.across == pytest.approx(8 * 63 / 64)  # 8 ranks share one network card
    assert sum_bytes(1.0, 64, 64, 64, 8).across == pytest.approx(7 / 8)
