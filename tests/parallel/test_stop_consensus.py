import itertools

import pytest


@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_ranks_hear_that_one_of_them_says_yes(world, ranks):
    for mine in itertools.product([False, True], repeat=world):
        assert ranks(world, "agreed", mine=mine) == [any(mine)] * world
