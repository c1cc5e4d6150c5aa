import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainrig.scaling.laws.law_forms import (
    DataConstrained,
    Kaplan,
    OverTraining,
    Parametric,
)

HOFFMANN = Parametric(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28)  # rounded in the paper
BESIROGLU = Parametric(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658)
REPLICATED = Parametric(E=1.81722, A=477.826, B=2143.417, alpha=0.34731, beta=0.36717)
KAPLAN = Kaplan(n_c=8.8e13, d_c=5.4e13, alpha_n=0.076, alpha_d=0.095)
KAPLAN_JOINT = Kaplan(n_c=6.4e13, d_c=1.8e13, alpha_n=0.076, alpha_d=0.103)
MUENNIGHOFF = DataConstrained(
    base=Parametric(E=1.869144, A=520.825, B=1487.716, alpha=0.3526596, beta=0.3526596),
    r_d=15.387756,
    r_n=5.309743,
)

exponents = st.floats(0.1, 0.8)
laws = st.builds(
    Parametric,
    E=st.floats(0.5, 3),
    A=st.floats(10, 1e4),
    B=st.floats(10, 1e4),
    alpha=exponents,
    beta=exponents,
)


def approximate(value, expected, relative=1e-4):
    return float(value) == pytest.approx(expected, rel=relative)


@pytest.mark.parametrize(
    ("form", "flops", "parameters", "tokens", "loss"),
    [
        (HOFFMANN, 1e21, 1.824e9, 9.136e10, 2.3289),
        (HOFFMANN, 5.76e23, 3.219e10, 2.982e12, None),
        (BESIROGLU, 1e18, 8.053e7, 2.07e9, None),
        (BESIROGLU, 1e21, 2.778e9, 5.999e10, 2.3055),
        (BESIROGLU, 5.76e23, 7.225e10, 1.329e12, 1.9744),
    ],
)
def test_published_laws_divide_budgets_as_published(form, flops, parameters, tokens, loss):
    best = form.compute_optimum(flops)
    assert approximate(best.parameters, parameters, 3e-4)  # the paper gives four digits
    assert approximate(best.tokens, tokens, 3e-4)
    if loss:
        assert approximate(best.loss, loss)


def test_tokens_per_parameter_at_chinchilla_compute_is_not_twenty():
    assert approximate(HOFFMANN.compute_optimum(5.76e23).tokens_per_parameter, 92.65)
    assert approximate(BESIROGLU.compute_optimum(5.76e23).tokens_per_parameter, 18.39, 3e-4)
    assert approximate(REPLICATED.compute_optimum(5.76e23).tokens_per_parameter, 17.92, 3e-4)


def test_rounding_the_published_exponents_moves_the_ratio_by_half():
    unrounded = Parametric(E=np.exp(0.5267228), A=406.4, B=410.7, alpha=0.33917, beta=0.28491)
    assert approximate(unrounded.compute_optimum(1e24).tokens_per_parameter, 61.8, 1e-3)
    assert approximate(HOFFMANN.compute_optimum(1e24).tokens_per_parameter, 97.73)


@pytest.mark.parametrize(
    ("form", "parameters", "tokens", "loss"),
    [
        (KAPLAN, 1e8, np.inf, 2.829963),
        (KAPLAN, 1e9, np.inf, 2.375640),
        (KAPLAN, np.inf, 1e9, 2.815642),
        (KAPLAN, 1e8, 1e9, 3.015030),
        (KAPLAN, 175e9, 300e9, 1.732287),
        (KAPLAN_JOINT, 1e8, 1e9, 2.956734),
        (KAPLAN_JOINT, 175e9, 300e9, 1.660957),
    ],
)
def test_kaplan_form_gives_known_losses(form, parameters, tokens, loss):
    assert approximate(form.compute_loss(parameters, tokens), loss, 1e-6)


@pytest.mark.parametrize(
    ("epochs", "worth"),
    [(1, 1), (4, 3.7257), (16, 10.5825), (40, 15.1675), (100, 16.3630), (1e6, 16.3878)],
)
def test_repeated_tokens_are_worth_ever_less(epochs, worth):
    _, fresh = MUENNIGHOFF.compute_effective(1e6, epochs * 1e9, 1e9)
    assert approximate(fresh / 1e9, worth)


@pytest.mark.parametrize(
    ("parameters", "tokens", "unique", "loss"),
    [
        (2.81e9, 55e9, 14e9, 2.37686),
        (8.67e9, 178e9, 25e9, 2.22696),
        (1e8, 1e9, 1e8, 4.1396),
    ],
)
def test_data_constrained_form_gives_known_losses(parameters, tokens, unique, loss):
    assert approximate(MUENNIGHOFF.compute_loss(parameters, tokens, unique), loss, 1e-5)


def test_data_constrained_parts_are_the_known_ones():
    parameters, tokens = MUENNIGHOFF.compute_effective(2.81e9, 55e9, 14e9)
    assert approximate(MUENNIGHOFF.base.compute_optimal_parameters(14e9), 7.138e8)
    assert approximate(parameters, 2.3239e9)
    assert approximate(tokens, 5.1335e10)


def test_data_constrained_optimum_is_the_base_one_until_data_run_out():
    free = MUENNIGHOFF.base.compute_optimum([1e20, 1e22])
    best = MUENNIGHOFF.compute_optimum([1e20, 1e22], unique_tokens=free.tokens[0] * 1.01)
    assert best.parameters[0] == free.parameters[0]
    assert best.tokens[1] > free.tokens[1]  # repeats lose value more slowly than parameters here
    assert np.allclose(best.parameters * best.tokens * 6, [1e20, 1e22])


@pytest.mark.parametrize("flops", [1e20, 1e22, 1e24])
def test_no_other_division_of_a_data_constrained_budget_does_better(flops):
    best = MUENNIGHOFF.compute_optimum(flops, unique_tokens=1e10)
    others = np.geomspace(flops / 6 / 1e10 / 1e5, flops / 6 / 1e10 * 100, 20_001)
    assert best.loss <= MUENNIGHOFF.compute_loss(others, flops / 6 / others, 1e10).min() + 1e-12


@given(laws, st.floats(1e15, 1e26), st.floats(0.9, 1.1))
def test_no_division_near_the_closed_form_does_better(law, flops, off):
    best = law.compute_optimum(flops)
    other = law.compute_loss(best.parameters * off, best.tokens / off)
    assert other >= best.loss * (1 - 1e-12)
    assert approximate(law.compute_optimal_parameters(best.tokens), float(best.parameters), 1e-9)


@pytest.mark.parametrize("form", [KAPLAN, KAPLAN_JOINT])
def test_no_other_division_of_a_kaplan_budget_does_better(form):
    best = form.compute_optimum(1e20)
    others = np.geomspace(1e6, 1e12, 20_001)
    assert best.loss <= form.compute_loss(others, 1e20 / 6 / others).min()
    assert approximate(
        form.compute_optimum(1e21).parameters / best.parameters, 10**form.parameters_exponent
    )


@given(laws, st.floats(1e15, 1e24), st.floats(1, 1000))
def test_over_training_form_is_the_parametric_one_with_equal_exponents(law, flops, multiplier):
    same = OverTraining(
        E=law.E, a=law.A * 6 ** (law.alpha / 2), b=law.B * 6 ** (law.alpha / 2), eta=law.alpha / 2
    )
    equal = law.with_constants({"beta": law.alpha})
    parameters = np.sqrt(flops / 6 / multiplier)
    tokens = parameters * multiplier
    split = same.a * multiplier**same.eta + same.b * multiplier**-same.eta
    published = same.E + split * flops**-same.eta
    assert approximate(published, equal.compute_loss(parameters, tokens), 1e-9)
    assert approximate(
        same.compute_loss(parameters, tokens), equal.compute_loss(parameters, tokens), 1e-9
    )
    assert approximate(
        same.compute_optimum(flops).tokens_per_parameter, (same.b / same.a) ** (0.5 / same.eta)
    )


def test_constants_go_out_and_in_by_name():
    changed = MUENNIGHOFF.with_constants({"base.A": 500.0, "r_n": 2.0})
    assert changed.constants["base.A"] == 500
    assert changed.constants | {"base.A": 520.825, "r_n": 5.309743} == MUENNIGHOFF.constants
    with pytest.raises(ValidationError):
        HOFFMANN.with_constants({"A": -1.0})


def test_a_kaplan_law_whose_sizes_are_hardly_bounded_predicts_without_overflow():
    form = Kaplan(n_c=1e290, d_c=1e12, alpha_n=0.002, alpha_d=0.1)
    exact = (math.exp(0.02 * (math.log(1e290) - math.log(1e8))) + 1e12 / 1e9) ** 0.1
    assert float(form.compute_loss(1e8, 1e9)) == pytest.approx(exact, rel=1e-12)
    steep = Kaplan(n_c=1e290, d_c=1e12, alpha_n=0.4, alpha_d=0.1)
    assert np.isfinite(steep.compute_optimum(1e18).loss)
