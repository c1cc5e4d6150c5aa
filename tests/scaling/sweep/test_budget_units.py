import pytest

from trainrig.scaling.sweep.budget_units import SweepBudget, parse_budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("1e18FLOPs", SweepBudget(1e18, "FLOPs")),
        ("2.5e+17 flops", SweepBudget(2.5e17, "FLOPs")),
        (" 20h ", SweepBudget(20, "h")),
        ("50.5USD", SweepBudget(50.5, "USD")),
    ],
)
def test_a_budget_is_an_amount_and_a_unit(text, budget):
    assert parse_budget(text) == budget


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("3kWh", "unknown unit 'kWh'; use FLOPs, h or USD, as in 1e18FLOPs, 20h or 50USD"),
        ("1e18", "no amount with a unit; use FLOPs"),
        ("-5h", "no amount with a unit"),
        ("", "no amount with a unit"),
        ("0USD", "give an amount above 0"),
        ("1e999h", "give an amount above 0"),
    ],
)
def test_another_unit_or_amount_is_refused_in_one_line(text, problem):
    with pytest.raises(ValueError) as refused:
        parse_budget(text)
    assert problem in str(refused.value) and "\n" not in str(refused.value)
