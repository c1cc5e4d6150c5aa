import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import config as run_files
from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.optim import (
    Constant,
    Cosine,
    InverseSquareRoot,
    Linear,
    Polynomial,
    Schedule,
    WarmupStableDecay,
)

WARMUPS = st.none() | st.integers(0, 9)
SCHEDULES = (
    st.builds(Cosine, warmup=WARMUPS, floor=st.floats(0, 1))
    | st.builds(Constant, warmup=WARMUPS)
    | st.builds(Linear, warmup=WARMUPS, floor=st.floats(0, 1))
    | st.builds(Polynomial, warmup=WARMUPS, floor=st.floats(0, 1), power=st.floats(0.1, 4))
    | st.builds(InverseSquareRoot, warmup=WARMUPS, timescale=st.none() | st.integers(1, 99))
    | st.builds(
        WarmupStableDecay,
        warmup=WARMUPS,
        floor=st.floats(0, 1),
        decay=st.floats(0.01, 1),
        form=st.sampled_from(["sqrt", "linear", "cosine"]),
    )
)


class Run(Settings):
    schedule: Schedule = Cosine()


def test_a_hand_worked_cosine():
    schedule = Cosine(warmup=2, floor=0.2)
    # Two steps of warm-up, then a quarter, a half, three quarters and the whole of the decay.
    falls = [(1 + math.cos(math.pi * share)) / 2 for share in (0.25, 0.5, 0.75, 1.0)]
    expected = [0.5, 1.0, *(0.2 + 0.8 * fall for fall in falls)]
    assert [schedule.multiplier(step, 6) for step in range(6)] == pytest.approx(expected)
    assert schedule.multiplier(5, 6) == pytest.approx(0.2)
    assert schedule.multiplier(50, 6) == pytest.approx(0.2)


FALLING = [
    (Cosine, {}),
    (Cosine, {"floor": 0.0}),
    (Linear, {}),
    (Polynomial, {}),
    (InverseSquareRoot, {}),
    (Constant, {}),
    *((WarmupStableDecay, {"form": form}) for form in ("sqrt", "linear", "cosine")),
    (WarmupStableDecay, {"decay": 1.0}),
]


@pytest.mark.parametrize(("kind", "changes"), FALLING)
@pytest.mark.parametrize("warmup", [None, 0])
def test_the_only_step_of_a_run_is_taken_at_the_peak(kind, changes, warmup):
    assert kind(warmup=warmup, **changes).multiplier(0, 1) == 1.0
    with pytest.raises(ConfigError, match=r"run does \(1 steps\)"):
        kind(warmup=1, **changes).multiplier(0, 1)


@pytest.mark.parametrize(("kind", "changes"), FALLING)
@pytest.mark.parametrize("warmup", [0, 1, 2])
def test_only_the_last_step_of_a_run_may_have_rate_0(kind, changes, warmup):
    """This holds also where warm-up takes all steps but the last, or the decay takes one step."""
    for steps in range(warmup + 1, 12):
        schedule = kind(warmup=warmup, **changes)
        rates = [schedule.multiplier(step, steps) for step in range(steps)]
        assert all(rate > 0 for rate in rates[: max(1, steps - 1)])


def test_a_hand_worked_constant():
    rates = [Constant(warmup=4).multiplier(step, 6) for step in range(6)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_a_hand_worked_fall_at_the_end():
    schedule = WarmupStableDecay(warmup=2, decay=0.4, floor=0.1)
    # Two steps of warm-up, four at the peak, and four of decay: the last 0.4 of ten.
    falls = [1 - math.sqrt(share) for share in (0.25, 0.5, 0.75, 1.0)]
    expected = [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, *(0.1 + 0.9 * fall for fall in falls)]
    assert [schedule.multiplier(step, 10) for step in range(10)] == pytest.approx(expected)
    assert schedule.stable_steps(10) == 6
    assert schedule.multiplier(50, 10) == pytest.approx(0.1)


def test_hand_worked_lines_powers_and_roots():
    def rates(schedule):
        return [schedule.multiplier(step, 6) for step in (*range(6), 50)]

    assert rates(Linear(warmup=2, floor=0.2)) == pytest.approx([0.5, 1, 0.8, 0.6, 0.4, 0.2, 0.2])
    left = [0.75, 0.5, 0.25, 0, 0]
    assert rates(Polynomial(warmup=2, power=3)) == pytest.approx([0.5, 1, *(x**3 for x in left)])
    # Relative to the peak at step 2, which is step 4,000 of the paper.
    paper = [(s + 1) ** -0.5 * 2**0.5 for s in (*range(2, 6), 50)]
    assert rates(InverseSquareRoot(warmup=2)) == pytest.approx([0.5, 1, *paper])
    slower = InverseSquareRoot(warmup=2, timescale=30)
    assert slower.multiplier(31, 100) == pytest.approx(0.5**0.5)
    assert InverseSquareRoot(warmup=0).multiplier(3, 9) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("form", "falls"), [("linear", [0.75, 0.5, 0.25, 0]), ("cosine", [0.8536, 0.5, 0.1464, 0])]
)
def test_a_fall_at_the_end_has_other_forms(form, falls):
    schedule = WarmupStableDecay(warmup=2, decay=0.4, form=form)
    assert [schedule.multiplier(s, 10) for s in range(5, 10)] == pytest.approx(
        [1, *falls], abs=1e-4
    )


@given(st.integers(0, 9), st.floats(0.01, 1), st.integers(10, 200), st.integers(0, 300))
def test_until_it_falls_the_rate_does_not_depend_on_the_length(warmup, decay, steps, more):
    schedule = WarmupStableDecay(warmup=warmup, decay=decay)
    stable = schedule.stable_steps(steps)
    assert stable <= schedule.stable_steps(steps + more) < steps + more
    assert [schedule.multiplier(step, steps) for step in range(stable)] == [
        schedule.multiplier(step, steps + more) for step in range(stable)
    ]


@pytest.mark.parametrize(("steps", "warmup"), [(5, 0), (100, 10), (20_000, 2_000), (10**6, 2_000)])
def test_the_default_warmup_is_a_tenth_of_the_run_and_at_most_2000_steps(steps, warmup):
    assert Cosine().warmup_steps(steps) == warmup
    if warmup:
        assert Cosine().multiplier(warmup - 1, steps) == 1.0
        assert Cosine().multiplier(warmup - 2, steps) < 1.0


@given(SCHEDULES, st.integers(10, 200))
def test_every_schedule_rises_to_the_peak_then_never_rises_again(schedule, steps):
    rates = [schedule.multiplier(step, steps) for step in range(steps + 5)]
    warmup = schedule.warmup_steps(steps)
    rise = rates[:warmup]
    fall = rates[warmup:]
    assert all(0 <= rate <= 1 for rate in rates)
    assert rise == sorted(rise) and (not rise or rise[-1] == 1.0)
    assert fall == sorted(fall, reverse=True)


@pytest.mark.parametrize("kind", [Cosine, Constant, Linear, InverseSquareRoot, WarmupStableDecay])
def test_a_warmup_longer_than_the_run_is_refused_with_what_would_do(kind):
    with pytest.raises(ConfigError, match=r"warmup \(60 steps\).*\(50 steps\).*5"):
        kind(warmup=60).multiplier(0, 50)


def test_a_run_file_chooses_a_schedule_by_its_kind():
    run = run_files.build(Run, {"schedule": {"kind": "Constant", "warmup": 3}}, "run.toml")
    assert run.schedule == Constant(warmup=3)
    with pytest.raises(ConfigError, match="did you mean 'Cosine'"):
        run_files.build(Run, {"schedule": {"kind": "Cosinus"}}, "run.toml")
    with pytest.raises(ConfigError, match="no key 'floor' in Constant"):
        run_files.build(Run, {"schedule": {"kind": "Constant", "floor": 0.1}}, "run.toml")
