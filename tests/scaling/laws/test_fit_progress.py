"""Lines of a fit that takes long: seldom, and with how much is done."""

import numpy as np

from trainrig.scaling.laws.fit_progress import EVERY, Progress
from trainrig.scaling.laws.forms import Parametric
from trainrig.scaling.laws.regression.bootstrap import Bootstrap, bootstrap_form
from trainrig.scaling.laws.regression.parametric import fit_parametric
from trainrig.scaling.laws.runs_table import RunsTable

TRUTH = Parametric(E=1.8, A=400, B=1600, alpha=0.34, beta=0.36)


def test_lines_come_at_a_bounded_rate_and_say_what_is_done() -> None:
    now, said = [0.0], []
    progress = Progress(said.append, lambda: now[0])
    progress.stage("fitting Kaplan")
    assert said == []  # what is soon done says nothing
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
    fit = fit_parametric(RunsTable.of(parameters=n, tokens=d, loss=TRUTH.loss(n, d) * scatter))
    told: list[tuple[int, int]] = []
    rules = Bootstrap(draws=150)
    counted = bootstrap_form(fit, rules, lambda done, total: told.append((done, total)))
    assert told == [(64, 150), (128, 150), (150, 150)]
    assert counted.forms == bootstrap_form(fit, rules).forms
