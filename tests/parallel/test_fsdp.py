import numpy as np
import pytest


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_gradients_of_ranks_are_added_up_not_averaged(world, deterministic, ranks):
    """In deterministic mode also: torch calls what stands for its reduce-scatter, and makes the
    gradients views of what that one was given to fill."""
    factors = (1.0, 10.0, 100.0)[:world]
    ((one, _),) = ranks(1, "sharded_gradient", factors=(1.0,), deterministic=False)
    answers = ranks(world, "sharded_gradient", factors=factors, deterministic=deterministic)
    for gradients, norm in answers:
        for whole, unit in zip(gradients, one, strict=True):
            np.testing.assert_allclose(whole, sum(factors) * unit, rtol=1e-5)
        expected = np.sqrt(sum(np.square(each, dtype=np.float64).sum() for each in gradients))
        assert norm == pytest.approx(expected, rel=1e-6)
        assert norm == answers[0][1]
