"""Choice of a law's form: the one that best predicts the held-out runs."""

import re
from dataclasses import replace

import numpy as np
import pytest

from trainrig.scaling.fit.fit_page import build_fit_page
from trainrig.scaling.fit.fit_verb import build_settings
from trainrig.scaling.fit.law_fit import LawFit, fit_law
from trainrig.scaling.fit.law_summary import describe_law, find_grave_warnings
from trainrig.scaling.laws.law_forms import Form, Kaplan, Parametric
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.bootstrap import Bootstrap
from trainrig.scaling.regression.form_choice import (
    HoldOut,
    Judged,
    LawForms,
    fit_forms,
    split_held_out,
)
from trainrig.scaling.regression.minimise import Huber

KAPLAN = Kaplan(n_c=6.4e13, d_c=1.8e13, alpha_n=0.076, alpha_d=0.103)
CHINCHILLA = Parametric(E=1.8, A=400, B=1600, alpha=0.34, beta=0.30)
FEW = LawFit(bootstrap=Bootstrap(draws=20), hold_out=HoldOut(share=0.25))


def make_table(law: Form) -> RunsTable:
    n, d = (v.ravel() for v in np.meshgrid(np.geomspace(1e7, 1e9, 6), np.geomspace(1e9, 1e11, 6)))
    scatter = np.exp(0.001 * np.random.default_rng(2).normal(size=n.size))
    return RunsTable.of(parameters=n, tokens=d, loss=law.compute_loss(n, d) * scatter)


@pytest.mark.slow
def test_the_form_that_predicts_best_heads_the_law_and_terminal_and_page_say_why() -> None:
    fitted = fit_law(make_table(KAPLAN), FEW, "web")
    assert fitted.law.form.kind == "Kaplan"
    assert fitted.law.held_out is not None and fitted.law.held_out.law_of_the_rest.kind == "Kaplan"
    assert fitted.law.choice.startswith("Kaplan, which has the lowest mean error on held-out runs")
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
        "The form Kaplan predicts the held-out runs better" in one
        for one in find_grave_warnings(law)
    )


@pytest.mark.slow
def test_the_standard_form_stays_within_one_standard_error_and_where_nothing_is_kept_back() -> None:
    runs = make_table(CHINCHILLA)
    forms = fit_forms(runs, split_held_out(runs, FEW.hold_out), None, Huber())
    assert forms.chosen == "Parametric"

    def found(parametric: list[float], kaplan: list[float], kept: str = "abcd") -> LawForms:
        errors = {"Parametric": parametric, "Kaplan": kaplan}
        judged = {
            kind: Judged(forms.judged[kind].fit, np.array(values))
            for kind, values in errors.items()
        }
        return replace(forms, judged=judged, kept=tuple(kept))

    # The best form's mean error is .010, with a standard error of .00183.
    kaplan = [0.006, 0.008, 0.012, 0.014]
    close = found([0.011, 0.011, 0.011, 0.0130], kaplan)
    assert close.chosen == "Parametric"
    assert "1.15%, is within one standard error (0.18%) of the lowest, 1.00% of Kaplan" in close.why
    assert found([0.012, 0.012, 0.012, 0.0124], kaplan).chosen == "Kaplan"
    assert found([0.03] * 4, kaplan, "aabb").chosen == "Parametric"  # two training runs
    none = fit_law(runs, FEW.model_copy(update={"hold_out": HoldOut(share=0)}), "web").law
    assert (
        none.choice == "Parametric, the standard form, because no runs were held out to choose by"
    )


def test_the_forms_are_named_in_the_options() -> None:
    assert build_settings({}).form is None
    assert build_settings({"form": "Kaplan"}).form == "Kaplan"
    with pytest.raises(Exception, match=re.escape("did you mean 'Kaplan'")):
        build_settings({"form": "Kapla"})
