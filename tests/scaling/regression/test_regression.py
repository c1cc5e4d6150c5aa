"""Progress lines of a long fit: infrequent, with the share that is done."""

import itertools

import numpy as np
import pytest

from trainrig.scaling.fit.law_fit import LawFit, fit_law
from trainrig.scaling.laws.law_forms import DataConstrained, Parametric
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.bootstrap import Bootstrap, bootstrap_form
from trainrig.scaling.regression.foretelling import HoldOut
from trainrig.scaling.regression.form_fits import fit_parametric
from trainrig.scaling.regression.regression import EVERY, Progress

TRUTH = Parametric(E=1.8, A=400, B=1600, alpha=0.34, beta=0.36)


def test_lines_come_at_a_bounded_rate_and_say_what_is_done() -> None:
    now = [0.0]
    said = []
    progress = Progress(said.append, lambda: now[0])
    progress.stage("fitting Kaplan")
    assert said == []  # a short fit prints nothing
    progress.stage("bootstrap")
    for done in range(1, 1001):
        now[0] += EVERY / 64  # exact in binary
        progress.count(done, 1000)
    assert len(said) == 15
    assert said[0] == "fit: bootstrap, 64 of 1,000, 5 s"
    assert said[-1] == "fit: bootstrap, 960 of 1,000, 75 s"


def test_draws_are_counted_on_the_way_and_are_the_same_as_all_at_once() -> None:
    n, d = (v.ravel() for v in np.meshgrid(np.geomspace(1e7, 1e9, 5), np.geomspace(1e9, 1e11, 5)))
    scatter = np.exp(0.003 * np.random.default_rng(2).normal(size=n.size))
    fit = fit_parametric(
        RunsTable.of(parameters=n, tokens=d, loss=TRUTH.compute_loss(n, d) * scatter)
    )
    told: list[tuple[int, int]] = []
    rules = Bootstrap(draws=150)
    counted = bootstrap_form(fit, rules, lambda done, total: told.append((done, total)))
    assert told == [(64, 150), (128, 150), (150, 150)]
    assert counted.forms == bootstrap_form(fit, rules).forms


@pytest.mark.slow
def test_a_fit_of_repeated_tokens_tells_of_each_stage_its_draws_and_profiles() -> None:
    """Use the form that takes longest."""
    law = DataConstrained(base=TRUTH, r_d=15.0, r_n=5.0)
    n = np.repeat(np.geomspace(1e7, 1e9, 4), 4)
    unique = np.tile([1e8, 1e9, 3e8, 3e9], 4)
    tokens = unique * np.tile([1, 4, 16, 64], 4)
    scatter = np.exp(0.003 * np.random.default_rng(2).normal(size=n.size))
    loss = law.compute_loss(n, tokens, unique) * scatter
    runs = RunsTable.of(parameters=n, tokens=tokens, unique_tokens=unique, loss=loss)
    said: list[str] = []
    # A clock so slow that no line is held back.
    progress = Progress(said.append, itertools.count(step=EVERY).__next__)
    few = LawFit(form="DataConstrained", hold_out=HoldOut(share=0), bootstrap=Bootstrap(draws=20))
    fit_law(runs, few, "web", progress=progress)
    told = [line.rpartition(", ")[0].removeprefix("fit: ") for line in said]
    at = [
        told.index(stage)
        for stage in ("fitting DataConstrained", "bootstrap, 20 of 20", "profiles, 7 of 7")
    ]
    assert at == sorted(at)
