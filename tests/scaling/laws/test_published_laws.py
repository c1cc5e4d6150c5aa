"""Published laws give the values that follow from their constants."""

import pytest

from trainrig.errors import ConfigError
from trainrig.scaling.laws.law_forms import DataConstrained, Kaplan, Parametric
from trainrig.scaling.laws.published_laws import HOFFMANN_SIZES, LAWS, find_published_law


@pytest.mark.parametrize(
    ("name", "flops", "parameters", "tokens", "loss"),
    [
        ("hoffmann-rounded", 1e21, 1.824e9, 9.136e10, 2.3289),
        ("hoffmann-rounded", 5.76e23, 3.219e10, 2.982e12, None),
        ("besiroglu", 1e18, 8.053e7, 2.070e9, None),
        ("besiroglu", 1e21, 2.778e9, 5.999e10, 2.3055),
        ("besiroglu", 5.76e23, 7.225e10, 1.329e12, 1.9744),
    ],
)
def test_optima_are_the_known_ones(
    name: str, flops: float, parameters: float, tokens: float, loss: float | None
) -> None:
    found = find_published_law(name).form.compute_optimum(flops)
    # The constants are known to these digits.
    assert float(found.parameters) == pytest.approx(parameters, rel=3e-4)
    assert float(found.tokens) == pytest.approx(tokens, rel=3e-4)
    if loss is not None:
        assert float(found.loss) == pytest.approx(loss, rel=1e-4)


def test_two_digits_of_the_exponents_move_the_advice_by_half() -> None:
    unrounded = find_published_law("hoffmann").form.compute_optimum(1e24)
    rounded = find_published_law("hoffmann-rounded").form.compute_optimum(1e24)
    assert float(unrounded.tokens_per_parameter) == pytest.approx(61.8, abs=0.1)
    assert float(rounded.tokens_per_parameter) == pytest.approx(97.73, abs=0.01)


@pytest.mark.parametrize(
    ("name", "parameters", "tokens", "loss"),
    [
        ("kaplan", 1e8, 1e9, 3.015030),
        ("kaplan", 175e9, 300e9, 1.732287),
        ("kaplan-joint", 1e8, 1e9, 2.956734),
        ("kaplan-joint", 175e9, 300e9, 1.660957),
        ("kaplan", 1e8, float("inf"), 2.829963),
        ("kaplan", 1e9, float("inf"), 2.375640),
        ("kaplan", float("inf"), 1e9, 2.815642),
    ],
)
def test_kaplans_losses_are_the_known_ones(
    name: str, parameters: float, tokens: float, loss: float
) -> None:
    form = find_published_law(name).form
    assert isinstance(form, Kaplan)
    assert float(form.compute_loss(parameters, tokens)) == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize(
    ("parameters", "tokens", "unique", "loss"),
    [(2.81e9, 55e9, 14e9, 2.37686), (8.67e9, 178e9, 25e9, 2.22696), (1e8, 1e9, 1e8, 4.1396)],
)
def test_losses_of_repeated_tokens_are_the_known_ones(
    parameters: float, tokens: float, unique: float, loss: float
) -> None:
    form = find_published_law("muennighoff").form
    assert isinstance(form, DataConstrained)
    assert float(form.compute_loss(parameters, tokens, unique)) == pytest.approx(loss, rel=1e-5)


def test_the_tables_of_hoffmann_are_of_6nd() -> None:
    for row in HOFFMANN_SIZES:
        for flops, tokens in row.approaches:
            assert 6 * row.parameters * tokens == pytest.approx(flops, rel=0.06)


def test_an_unknown_law_gets_the_nearest_and_one_without_a_loss_its_reason() -> None:
    with pytest.raises(ConfigError, match="did you mean 'hoffmann'"):
        find_published_law("hofman")
    with pytest.raises(ConfigError, match="has no loss"):
        find_published_law("llama3")


def test_every_law_says_where_it_is_from() -> None:
    for name, law in LAWS.items():
        assert law.name == name
        assert "arXiv:" in law.source
        assert isinstance(law.form, Parametric | Kaplan | DataConstrained)
