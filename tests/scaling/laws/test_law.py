import numpy as np
import pytest

from trainrig.errors import DataError
from trainrig.scaling.laws.law import (
    Compared,
    FittedRange,
    Interval,
    IntervalEstimate,
    Law,
    Ranges,
    WeightedForm,
    compute_percentiles,
    read_law,
    write_law,
)
from trainrig.scaling.laws.law_forms import Kaplan, Parametric
from trainrig.scaling.laws.stacking import Spread

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


def test_a_prediction_of_two_forms_is_their_mean_by_their_shares():
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
    assert law.predict_interval(known_to_parametric, 1e12, 2e13).contains(predict_at(FORM))


@pytest.mark.parametrize("weight", [0.02, 0.3, 0.6])
def test_an_interval_allows_for_disagreement_noise_and_errors_on_larger_runs(weight, tmp_path):
    alone = LAW.predict_interval(predict_at, 1e12, 2e13)
    law = LAW.model_copy(update={
        "weight": 1 - weight,
        "members": (WeightedForm(form=KAPLAN, weight=weight, draws=(KAPLAN,) * 25),),
        "spread": Spread(noise=0.01, scale=2.0, runs=12),
    })  # fmt: skip
    interval = law.predict_interval(predict_at, 1e12, 2e13)
    assert interval.contains(law.combine(predict_at))
    assert interval.high / interval.low > alone.high / alone.low
    path = str(tmp_path / "law.json")
    write_law(path, law)
    assert read_law(path) == law


def test_a_form_that_does_not_know_the_quantity_leaves_the_interval_alone():
    law = LAW.model_copy(
        update={"weight": 0.5, "members": (WeightedForm(form=KAPLAN, weight=0.5),)}
    )

    def known_to_parametric(form):
        return np.nan if isinstance(form, Kaplan) else predict_at(form)

    assert law.predict_interval(known_to_parametric, 1e12, 2e13) == LAW.predict_interval(
        predict_at, 1e12, 2e13
    )


@pytest.mark.parametrize(("as_good", "contained"), [(True, True), (None, True), (False, False)])
def test_an_interval_contains_each_form_that_is_not_known_to_be_worse(as_good, contained):
    far = FORM.with_constants({"E": 0.9})
    other = Kaplan(n_c=6.4e13, d_c=1.8e13, alpha_n=0.076, alpha_d=0.103)
    law = LAW.model_copy(update={
        "compared": (Compared(form=other, objective=1.0, held_out_error=0.1, as_good=as_good),)
    })  # fmt: skip

    def predict(form):
        return predict_at(far if isinstance(form, Kaplan) else form)

    assert law.predict_interval(predict, 1e12, 2e13).contains(predict_at(far)) == contained


def test_an_interval_contains_the_prediction_of_each_form_with_a_share():
    law = LAW.model_copy(
        update={"weight": 0.98, "members": (WeightedForm(form=KAPLAN, weight=0.02),)}
    )
    assert law.predict_interval(predict_at, 1e12, 2e13).contains(predict_at(KAPLAN))


def test_an_interval_is_wider_farther_from_the_runs():
    spans = [FittedRange(least=1.0, greatest=greatest) for greatest in (1e9, 2e10, 1.2e20, 1e3)]
    law = LAW.model_copy(update={
        "ranges": Ranges(
            parameters=spans[0], tokens=spans[1], flops=spans[2], tokens_per_parameter=spans[3]
        ),
        "spread": Spread(noise=0.01, scale=2.0, distance=1.0, runs=9),
    })  # fmt: skip

    def measure_width(parameters, tokens):
        found = law.predict_interval(lambda form: 2.0, parameters, tokens)
        return np.log(found.high / found.low)

    assert measure_width(1e8, 1e9) == measure_width(1e9, 2e10)
    excess = 1 + 3 * np.log(100)  # the compute is 100 times, of runs that show twice the errors
    assert measure_width(1e10, 2e11) == pytest.approx(
        measure_width(1e9, 2e10) * np.sqrt(excess / 4)
    )
