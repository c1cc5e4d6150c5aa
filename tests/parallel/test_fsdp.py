import numpy as np
import pytest


@pytest.mark.parametrize("world", [1, 2, 3])
def test_gradients_of_ranks_are_added_up_not_averaged(world, ranks):
    factors = (1.0, 10.0, 100.0)[:world]
    (one,) = ranks(1, "sharded_gradient", factors=(1.0,))
    for gradients in ranks(world, "sharded_gradient", factors=factors):
        for whole, unit in zip(gradients, one, strict=True):
            np.testing.assert_allclose(whole, sum(factors) * unit, rtol=1e-5)
