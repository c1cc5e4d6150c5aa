"""Allocation of compute to size and tokens, for each combination of given values."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.errors import ConfigError
from trainrig.scaling.laws.law_forms import DataConstrained
from trainrig.scaling.laws.published_laws import find_published_law
from trainrig.scaling.plan.allocation import (
    Allocation,
    allocate_for_flops,
    allocate_for_parameters,
    allocate_for_serving,
    allocate_for_tokens,
    compute_allocation_loss,
    find_tokens_reaching,
    to_data_constrained,
)

HOFFMANN = find_published_law("hoffmann-rounded").form
FLOPS = st.floats(15, 27).map(lambda exponent: 10.0**exponent)


@pytest.mark.parametrize(
    ("budget", "served", "parameters", "tokens", "saved"),
    [
        (1e21, 1e11, 1.297e9, 1.337e11, 0.0472),
        (1e21, 1e12, 7.177e8, 3.392e11, 0.3770),
        (1e21, 1e13, 4.242e8, 1.342e12, 0.6825),
        (1e23, 1e12, 1.087e10, 1.58e12, 0.0345),
        (1e23, 1e13, 6.094e9, 3.78e12, 0.3365),
    ],
)
def test_a_served_model_is_smaller_by_the_known_amounts(
    budget: float, served: float, parameters: float, tokens: float, saved: float
) -> None:
    trained = allocate_for_flops(HOFFMANN, budget)
    found = allocate_for_serving(HOFFMANN, trained, served)
    assert found.parameters == pytest.approx(parameters, rel=2e-3)
    assert found.tokens == pytest.approx(tokens, rel=2e-3)
    whole = [
        allocation.flops + 2 * allocation.parameters * served for allocation in (found, trained)
    ]
    assert 1 - whole[0] / whole[1] == pytest.approx(saved, abs=1e-4)
    assert compute_allocation_loss(HOFFMANN, found) == pytest.approx(
        compute_allocation_loss(HOFFMANN, trained), rel=1e-9
    )


@given(FLOPS)
def test_a_model_without_serving_has_the_closed_form_size(flops: float) -> None:
    trained = allocate_for_flops(HOFFMANN, flops)
    assert allocate_for_serving(HOFFMANN, trained, 0.0) == trained


@given(FLOPS, st.sampled_from(["hoffmann", "kaplan", "besiroglu", "muennighoff"]))
def test_a_size_and_its_tokens_lead_back_to_the_budget(flops: float, name: str) -> None:
    form = find_published_law(name).form
    best = allocate_for_flops(form, flops)
    assert allocate_for_parameters(form, best.parameters).flops == pytest.approx(flops, rel=1e-6)
    assert allocate_for_tokens(form, best.tokens).flops == pytest.approx(flops, rel=1e-6)


def test_tokens_that_reach_a_loss_reach_it() -> None:
    for name in ("hoffmann", "kaplan"):
        form = find_published_law(name).form
        tokens = find_tokens_reaching(form, 2.5, 1e10)
        assert float(form.compute_loss(1e10, tokens)) == pytest.approx(2.5, rel=1e-10)
    assert find_tokens_reaching(HOFFMANN, 1.5, 1e10) == math.inf


def test_with_fewer_tokens_the_model_is_smaller_and_sees_them_again() -> None:
    form = to_data_constrained(HOFFMANN)
    assert isinstance(form, DataConstrained)
    free = allocate_for_flops(form, 1e21)
    assert allocate_for_flops(form, 1e21, unique_tokens=2 * free.tokens) == free
    few = allocate_for_flops(form, 1e21, unique_tokens=free.tokens / 20)
    assert few.tokens > free.tokens / 20
    assert compute_allocation_loss(form, few, free.tokens / 20) > compute_allocation_loss(
        form, free
    )
    # No other allocation of the budget has a lower loss.
    for factor in (0.5, 0.9, 1.1, 2.0):
        other = Allocation(few.parameters * factor, few.tokens / factor)
        assert compute_allocation_loss(form, other, free.tokens / 20) > compute_allocation_loss(
            form, few, free.tokens / 20
        )


def test_a_law_that_cannot_see_repeats_says_so() -> None:
    with pytest.raises(ConfigError, match="cannot tell repeated tokens"):
        to_data_constrained(find_published_law("kaplan").form)


def test_a_size_that_is_never_best_is_refused() -> None:
    with pytest.raises(ConfigError, match="no budget makes"):
        allocate_for_tokens(HOFFMANN, 1e60)
