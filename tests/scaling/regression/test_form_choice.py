"""Choice of a law's form: the one that best predicts the held-out runs."""

import re

import numpy as np
import pytest

from trainrig.scaling.fit.fit_page import build_fit_page
from trainrig.scaling.fit.fit_verb import build_settings
from trainrig.scaling.fit.law_fit import LawFit, fit_law
from trainrig.scaling.fit.law_summary import describe_law, find_grave_warnings
from trainrig.scaling.laws.law_forms import Form, Kaplan, Parametric
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.bootstrap import Bootstrap
from trainrig.scaling.regression.foretelling import CutForecast, Foretold, HeldOutSplit, HoldOut
from trainrig.scaling.regression.form_choice import LawForms

KAPLAN = Kaplan(n_c=6.4e13, d_c=1.8e13, alpha_n=0.076, alpha_d=0.103)
CHINCHILLA = Parametric(E=1.8, A=400, B=1600, alpha=0.34, beta=0.30)
FEW = LawFit(bootstrap=Bootstrap(draws=20), hold_out=HoldOut(share=0.25))


def make_table(law: Form) -> RunsTable:
    n, d = (v.ravel() for v in np.meshgrid(np.geomspace(1e7, 1e9, 6), np.geomspace(1e9, 1e11, 6)))
    scatter = np.exp(0.001 * np.random.default_rng(2).normal(size=n.size))
    return RunsTable.of(parameters=n, tokens=d, loss=law.compute_loss(n, d) * scatter)


def make_small_sweep() -> RunsTable:
    """Return runs so small that the parametric form would fit a negative irreducible loss."""
    n = np.repeat([19_872, 40_160, 79_824], 4)
    d = np.tile([96_256, 192_000, 384_000, 768_000], 3)
    loss = [6.321, 5.902, 5.550, 5.307, 6.323, 5.861, 5.500, 5.227, 6.256, 5.850, 5.443, 5.107]
    trial = [f"n{size}" for size in n]
    return RunsTable.of(parameters=n, tokens=d, loss=loss, trial=trial)


@pytest.mark.slow
def test_the_form_that_predicts_best_heads_the_law_and_terminal_and_page_say_why() -> None:
    fitted = fit_law(make_table(KAPLAN), FEW, "web")
    assert fitted.law.form.kind == "Kaplan"
    assert fitted.law.held_out is not None and fitted.law.held_out.law_of_the_rest.kind == "Kaplan"
    assert fitted.law.choice.startswith("Kaplan, which has the lowest mean error on larger runs")
    assert fitted.law.choice in "\n".join(describe_law(fitted.law))
    assert fitted.law.choice in build_fit_page(fitted, "law")
    errors = {one.form.kind: one.held_out_error for one in fitted.law.compared}
    assert errors["Kaplan"] == min(errors.values(), key=lambda error: error or 1.0)


@pytest.mark.slow
def test_the_form_asked_for_is_fitted_and_a_better_one_is_named() -> None:
    law = fit_law(make_table(KAPLAN), FEW.model_copy(update={"form": "Parametric"}), "web").law
    assert law.form.kind == "Parametric"
    assert law.choice == "Parametric, as --form asks"
    assert any(
        "The form Kaplan predicts larger runs better" in one for one in find_grave_warnings(law)
    )


def make_forecast(errors: np.ndarray, trials: str) -> CutForecast:
    """Return predictions that are above the measured losses by the share `errors`."""
    measured = RunsTable.of(parameters=1e9, tokens=1e10, loss=[2.0] * len(errors), trial=[*trials])
    known = np.ones(0, dtype=bool)
    return CutForecast(
        HeldOutSplit(measured, measured, known, known, ""), np.ones(0), 2.0 * (1 + errors), 0.0
    )


def test_the_simplest_form_within_one_standard_error_is_chosen() -> None:
    """At the better form's mean error of .0100 over two cuts, the standard error is .0008."""

    def choose(parametric: float, kaplan: float, names: str = "abcd") -> LawForms:
        offsets = np.array([-0.004, -0.002, 0.002, 0.004])
        foretold = {
            kind: Foretold(
                {
                    cut: make_forecast(error + scatter, names)
                    for cut, scatter in enumerate((offsets, -offsets / 8))
                }
            )
            for kind, error in (("Parametric", parametric), ("Kaplan", kaplan))
        }
        return LawForms(None, {"Parametric": None, "Kaplan": None}, foretold, {})

    close = choose(0.0107, 0.010)
    assert close.chosen == "Parametric"
    assert "1.07% over 2 cuts of the runs, is within one standard error" in close.why
    assert choose(0.012, 0.010).chosen == "Kaplan"
    assert choose(0.03, 0.010, "aabb").chosen == "Parametric"  # two training runs


def test_a_worse_form_has_a_smaller_share_the_more_runs_were_foretold() -> None:
    def compute_share(count: int) -> float:
        names = [f"{run}" for run in range(count)]
        foretold = {}
        for kind, error in (("Parametric", 0.01), ("Kaplan", 0.02)):
            errors = np.full(count, error)
            forecast = make_forecast(errors, "a" * count)
            split = forecast.split
            measured = RunsTable.of(
                parameters=1e9, tokens=1e10, loss=split.largest.loss, trial=names
            )
            split = HeldOutSplit(measured, measured, split.held, split.below, "")
            foretold[kind] = Foretold({0: CutForecast(split, np.ones(0), forecast.predicted, 0.0)})
        forms = LawForms(None, {"Parametric": None, "Kaplan": None}, foretold, {})
        return forms.weights["Kaplan"]

    assert compute_share(8) == pytest.approx(1 / 5)  # 1 / error^2
    assert compute_share(16) == pytest.approx(1 / 17)  # 1 / error^4


@pytest.mark.slow
def test_the_standard_form_stays_where_nothing_is_kept_back_and_another_where_it_does_not_fit() -> (
    None
):
    settings = FEW.model_copy(update={"hold_out": HoldOut(share=0)})
    law = fit_law(make_table(CHINCHILLA), settings, "web").law
    assert law.choice == "Parametric, the standard form, because no runs were held out to choose by"
    small = fit_law(make_small_sweep(), settings, "small").law
    assert small.form.kind != "Parametric"
    assert "(the runs show no Parametric law)" in small.choice


def test_the_forms_are_named_in_the_options() -> None:
    assert build_settings({}).form is None
    assert build_settings({"form": "Kaplan"}).form == "Kaplan"
    with pytest.raises(Exception, match=re.escape("did you mean 'Kaplan'")):
        build_settings({"form": "Kapla"})
