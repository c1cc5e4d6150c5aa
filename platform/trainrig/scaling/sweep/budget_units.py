"""Budgets of a whole sweep in FLOPs, trial hours or dollars, as run files write them."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

Unit = Literal["FLOPs", "h", "USD"]
_BUDGET = re.compile(r"(\d+\.?\d*(?:[eE][+-]?\d+)?)\s*(\S*)")


@dataclass(frozen=True)
class SweepBudget:
    """Amount that all runs of a sweep may cost together."""

    amount: float
    unit: Unit  # FLOPs, counted exactly; h: hours of one trial; USD: the price of these hours


def parse_budget(text: str) -> SweepBudget:
    """Parse a budget such as `1e18FLOPs`, `20h` or `50USD`.

    Raises ValueError for other units, and for amounts that are not above 0.
    """
    found = _BUDGET.fullmatch(text.strip())
    units = {unit.lower(): unit for unit in get_args(Unit)}
    if found is None or found[2].lower() not in units:
        problem = f"unknown unit '{found[2]}'" if found and found[2] else "no amount with a unit"
        raise ValueError(
            f"budgets: '{text}': {problem}; use FLOPs, h or USD, as in 1e18FLOPs, 20h or 50USD"
        )
    amount = float(found[1])
    if not 0 < amount < float("inf"):
        raise ValueError(f"budgets: '{text}': give an amount above 0")
    return SweepBudget(amount, units[found[2].lower()])
