import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.errors import DataError
from trainrig.scaling.laws.law import (
    Interval,
    IntervalEstimate,
    Law,
    WeightedForm,
    compute_percentiles,
    compute_shared_percentiles,
    read_law,
    write_law,
)
from trainrig.scaling.laws.law_forms import Kaplan, Parametric

FORM = Parametric(E=1.8, A=480.0, B=2100.0, alpha=0.35, beta=0.37)
DRAWS = tuple(FORM.with_constants({"E": 1.7 + 0.002 * k}) for k in range(101))
LAW = Law(
    name="test",
    form=FORM,
    draws=DRAWS,
    estimates={"E": IntervalEstimate(value=1.8, profile=Interval(low=1.7, high=None))},
    parameters_count="total",
    tokenizer="bytes",
)


def test_a_law_comes_back_as_it_was_and_has_the_same_bytes(tmp_path):
    path = tmp_path / "law.json"
    write_law(str(path), LAW)
    first = path.read_bytes()
    assert read_law(str(path)) == LAW
    write_law(str(path), read_law(str(path)))
    assert path.read_bytes() == first
    assert first.count(b"\n") < 101 + 60  # a draw takes one line


def test_a_law_without_draws_comes_back(tmp_path):
    path = str(tmp_path / "law.json")
    write_law(path, LAW.model_copy(update={"draws": ()}))
    assert read_law(path).draws == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSON file"),
        (
            '{"name": "x", "form": {"kind": "Cubic"}, "parameters_count": "total"}',
            "form: no kind 'Cubic'",
        ),
        ("[]", "is this a law"),
    ],
)
def test_an_invalid_law_file_is_a_one_line_error(tmp_path, text, message):
    path = tmp_path / "law.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as refused:
        read_law(str(path))
    assert "\n" not in str(refused.value)


def test_a_missing_law_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no such law.*`trainrig fit`"):
        read_law(str(tmp_path / "law.json"))


def test_an_interval_of_anything_comes_from_the_draws():
    found = LAW.compute_interval(
        lambda form: float(form.compute_loss(1e9, np.inf)) - float(FORM.compute_loss(1e9, np.inf))
    )
    assert found is not None
    assert found.low == pytest.approx(-0.095)
    assert found.high == pytest.approx(0.095)
    assert LAW.model_copy(update={"draws": DRAWS[:10]}).compute_interval(lambda form: 1.0) is None


def test_infinite_draws_leave_the_upper_end_open():
    values = np.r_[np.linspace(1, 2, 90), np.full(10, np.inf)]
    assert str(compute_percentiles(values)) == "[1.028, unbounded above]"
    assert compute_percentiles(np.r_[1.0, np.full(99, np.nan)]) == Interval(low=1, high=None)
    assert compute_percentiles(values, 0.5).high is not None


KAPLAN = Kaplan(n_c=8.8e13, d_c=5.4e13, alpha_n=0.076, alpha_d=0.095)


def predict_at(form):
    return float(form.compute_loss(1e12, 2e13))


def test_a_prediction_is_the_mean_of_the_forms_by_their_shares():
    law = LAW.model_copy(
        update={
            "weight": 0.75,
            "members": (WeightedForm(form=KAPLAN, weight=0.25, draws=(KAPLAN,) * 30),),
        }
    )
    expected = 0.75 * predict_at(FORM) + 0.25 * predict_at(KAPLAN)
    assert law.combine(predict_at) == pytest.approx(expected, rel=1e-12)
    assert LAW.combine(predict_at) == predict_at(FORM)

    def known_to_parametric(form):
        return np.nan if isinstance(form, Kaplan) else predict_at(form)

    assert law.combine(known_to_parametric) == predict_at(FORM)
    assert law.compute_wide_interval(known_to_parametric).contains(predict_at(FORM))


@pytest.mark.parametrize("weight", [0.02, 0.3, 0.6])
@pytest.mark.parametrize("drawn", [0, 25])
def test_an_interval_contains_the_disagreement_of_the_forms(weight, drawn, tmp_path):
    law = LAW.model_copy(update={
        "weight": 1 - weight,
        "members": (WeightedForm(form=KAPLAN, weight=weight, draws=(KAPLAN,) * drawn),),
    })  # fmt: skip
    interval = law.compute_wide_interval(predict_at)
    for form in (FORM, KAPLAN):
        assert interval.contains(predict_at(form))
    assert interval.contains(law.combine(predict_at))
    path = str(tmp_path / "law.json")
    write_law(path, law)
    assert read_law(path) == law


@given(
    st.lists(st.integers(-20, 20), min_size=5, max_size=30),
    st.lists(st.integers(-20, 20), min_size=5, max_size=30),
    st.integers(1, 9),
)
def test_shared_percentiles_are_those_of_draws_repeated_by_their_shares(first, second, tenths):
    """The twin repeats each draw so often that the sets have their shares of all repeated draws."""
    sets = [np.array(first, float), np.array(second, float)]
    shares = [tenths / 10, 1 - tenths / 10]
    found = compute_shared_percentiles(sets, shares, 0.8)
    repeated = np.sort(np.concatenate([
        np.repeat(sets[0], tenths * len(second)), np.repeat(sets[1], (10 - tenths) * len(first))
    ]))  # fmt: skip
    for end, share in ((found.low, 0.1), (found.high, 0.9)):
        # shares of draws fall between two repeated draws, so neighbours of the rank are right too
        at = share * len(repeated)
        near = repeated[
            [max(int(np.floor(at - 1e-6)) - 1, 0), min(int(np.ceil(at + 1e-6)), len(repeated) - 1)]
        ]
        assert near.min() <= end <= near.max()
