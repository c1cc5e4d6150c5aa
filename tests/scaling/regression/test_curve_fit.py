"""Learning curves that are planted by the law: its constants, its predictions and their limits."""

import numpy as np
import pytest

from trainrig.errors import DataError
from trainrig.optim import Schedule
from trainrig.optim.schedules import Constant, Cosine, WarmupStableDecay
from trainrig.scaling.laws.annealing_law import Annealing
from trainrig.scaling.laws.learning_curves import Curve
from trainrig.scaling.regression.curve_fit import CurveFit, fit_curves

TRUTH = Annealing(L0=1.6, A=5.0, alpha=0.45, C=1.5e-3, memory=0.98, peak=3e-3)
STEPS = 1_000
SCHEDULES: dict[str, Schedule] = {
    "constant": Constant(warmup=50),
    "cosine": Cosine(warmup=50),
    "wsd": WarmupStableDecay(warmup=50),
}
FEW = CurveFit(draws=10)


def plant(name: str, noise: float = 0.0, seed: int = 0, until: int = STEPS) -> Curve:
    """Return the curve of a run of STEPS steps, measured every 20 up to step `until`."""
    rates = np.array(
        [TRUTH.peak * SCHEDULES[name].multiplier(step, STEPS) for step in range(STEPS)]
    )
    steps = np.arange(20, until + 1, 20)
    errors = noise * np.random.default_rng(seed).standard_normal(len(steps))
    losses = TRUTH.compute_losses(rates)[steps - 1] * np.exp(errors)
    return Curve(name, rates, steps, losses, until)


def test_planted_constants_are_found() -> None:
    found = fit_curves([plant("cosine"), plant("wsd")], FEW).form
    assert pytest.approx(TRUTH.L0, rel=0.02) == found.L0
    assert found.alpha == pytest.approx(TRUTH.alpha, rel=0.05)
    assert 1 - found.memory == pytest.approx(1 - TRUTH.memory, rel=0.3)  # a grid of values
    saved = found.C / (1 - found.memory), TRUTH.C / (1 - TRUTH.memory)
    assert saved[0] == pytest.approx(saved[1], rel=0.1)


def test_two_schedules_foretell_the_third() -> None:
    curves = {name: plant(name, 1e-3, seed) for seed, name in enumerate(SCHEDULES)}
    for name, held_out in curves.items():
        others = [curve for other, curve in curves.items() if other != name]
        losses = fit_curves(others, FEW).form.compute_losses(held_out.rates)
        truth = TRUTH.compute_losses(held_out.rates)
        assert losses[100:] == pytest.approx(truth[100:], rel=5e-3)


def test_the_fit_uses_no_loss_after_the_last_step() -> None:
    known = plant("wsd", until=600)
    longer = Curve("wsd", known.rates[:700], known.steps, known.losses, known.done)
    assert fit_curves([known], FEW).form == fit_curves([longer], FEW).form


def test_a_run_before_its_decay_learns_the_effect_of_one_from_another_run() -> None:
    running = plant("wsd", 1e-3, until=700)
    alone = fit_curves([running], FEW)
    assert not alone.anneals
    assert alone.form.C == 0
    both = fit_curves([running, plant("cosine", 1e-3, 1)], FEW)
    assert both.anneals
    loss, interval = both.predict(running.rates, False)
    truth = TRUTH.compute_losses(running.rates)[-1]
    assert loss == pytest.approx(truth, rel=0.01)
    assert interval is not None
    assert interval.contains(truth)


def test_a_decay_that_only_other_runs_show_has_the_interval_of_another_schedule() -> None:
    others = [plant("cosine", 4e-3, 1), plant("constant", 4e-3, 2)]
    running = plant("wsd", 4e-3, until=700)
    both = fit_curves([running, *others], FEW)
    assert both.predict(running.rates, False)[1] == both.predict(running.rates, True)[1]
    decaying = plant("wsd", 4e-3, until=900)
    both = fit_curves([decaying, *others], FEW)
    assert both.predict(decaying.rates, False)[1] != both.predict(decaying.rates, True)[1]


def test_an_interval_grows_with_the_distance() -> None:
    fitted = fit_curves([plant("constant", 3e-3, 4, until=500)], FEW)
    rates = np.full(20_000, TRUTH.peak)
    widths = []
    for steps in (600, 2_000, 20_000):
        loss, interval = fitted.predict(rates[:steps], False)
        assert interval is not None
        assert interval.low is not None
        assert interval.high is not None
        widths.append((interval.high - interval.low) / loss)
    assert widths[0] < widths[1] < widths[2]


@pytest.mark.slow
def test_intervals_hold_the_planted_end() -> None:
    held = 0
    for seed in range(20):
        running = plant("cosine", 4e-3, seed, until=600)
        loss, interval = fit_curves([running, plant("wsd", 4e-3, 100 + seed)], FEW).predict(
            running.rates, False
        )
        truth = TRUTH.compute_losses(running.rates)[-1]
        assert loss == pytest.approx(truth, rel=0.03)
        held += interval is not None and interval.contains(truth)
    assert held >= 17  # of 20; 19 are expected


def test_the_same_losses_give_the_same_fit() -> None:
    first, second = (fit_curves([plant("wsd", 1e-3)], FEW) for _ in range(2))
    assert first.form == second.form
    assert first.draws == second.draws


def test_fewer_losses_than_unknowns_are_refused() -> None:
    with pytest.raises(DataError, match=r"cosine: 4 held-out losses after the warm-up.* 6 or more"):
        fit_curves([plant("cosine", until=120)], FEW)


def test_losses_of_the_warm_up_are_left_out() -> None:
    curve = plant("wsd")
    strange = curve.losses.copy()
    strange[:2] = 9.0  # steps 20 and 40, of a warm-up of 50
    changed = Curve("wsd", curve.rates, curve.steps, strange, curve.done)
    assert fit_curves([changed], FEW).form == fit_curves([curve], FEW).form
