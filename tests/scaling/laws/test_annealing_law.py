"""The annealing law: its sums by brute force, and what a loss may depend on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.optim.schedules import Constant, Cosine, WarmupStableDecay
from trainrig.scaling.laws.annealing_law import (
    Annealing,
    count_falls,
    sum_annealing,
    sum_rates,
)

LAW = Annealing(L0=1.5, A=4.0, alpha=0.4, C=2e-2, memory=0.95, peak=2e-3)
RATES = st.lists(st.floats(0, 1), min_size=2, max_size=40)


def sum_by_hand(rates: list[float], memory: float) -> tuple[list[float], list[float]]:
    """Return S1 and S2 at each step by the double sum of the paper, without the warm-up."""
    first = next((k for k in range(1, len(rates)) if rates[k] < rates[k - 1]), len(rates))
    forward = [sum(rates[: step + 1]) for step in range(len(rates))]
    annealed = [
        sum(
            (rates[k - 1] - rates[k]) * memory ** (i - k)
            for i in range(first, step + 1)
            for k in range(first, i + 1)
        )
        for step in range(len(rates))
    ]
    return forward, annealed


@given(RATES, st.floats(0, 0.999))
def test_sums_equal_the_double_sum(rates: list[float], memory: float) -> None:
    forward, annealed = sum_by_hand(rates, memory)
    assert sum_rates(rates) == pytest.approx(forward, abs=1e-9)
    assert sum_annealing(rates, memory) == pytest.approx(annealed, abs=1e-9)


@given(RATES, RATES, st.integers(1, 40))
def test_a_loss_depends_on_the_rates_up_to_its_step_alone(
    rates: list[float], others: list[float], step: int
) -> None:
    step = min(step, len(rates))
    changed = rates[:step] + others
    before = LAW.compute_losses(rates)[:step]
    assert LAW.compute_losses(changed)[:step].tolist() == before.tolist()


def test_by_hand() -> None:
    # Rates 1, 1, .5 of the peak: S1 = 2.5, and S2 = .5 after the step of the fall.
    losses = LAW.compute_losses(np.array([1, 1, 0.5]) * LAW.peak)
    assert losses[2] == pytest.approx(1.5 + 4 * 2.5**-0.4 - 2e-2 * 0.5)


def test_a_fall_saves_as_much_as_its_formula_says_in_the_end() -> None:
    rates = [1.0] * 10 + [0.2] * 500
    annealed = sum_annealing(rates, 0.9)
    assert annealed[9] == 0
    assert annealed[10] == pytest.approx(0.8)
    assert annealed[-1] == pytest.approx(0.8 / (1 - 0.9))


def test_the_warm_up_anneals_nothing_and_a_later_rise_undoes_a_fall() -> None:
    assert not count_falls([0.1, 0.5, 1, 1]).any()
    assert count_falls([0.1, 1, 0.4, 0.9]).tolist() == pytest.approx([0, 0, 0.6, -0.5])


def test_a_decay_reaches_a_lower_loss_than_a_constant_rate() -> None:
    ends = {
        schedule.kind: LAW.compute_losses(
            [LAW.peak * schedule.multiplier(step, 400) for step in range(400)]
        )[-1]
        for schedule in (Constant(), Cosine(), WarmupStableDecay())
    }
    assert max(ends["WarmupStableDecay"], ends["Cosine"]) < ends["Constant"]
