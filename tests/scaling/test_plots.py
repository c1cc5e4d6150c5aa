"""Plots of scaling laws: each point is where its data is."""

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from trainrig.report.plot_drawing import draw_on
from trainrig.report.plots import Line, Note
from trainrig.scaling.fit.fit_charts import _name_budgets, draw_isoflops, draw_profile
from trainrig.scaling.law_plots import compute_surface, draw_agreement, draw_contours, mark_chosen
from trainrig.scaling.laws.law import Interval
from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.hoffmann import IsoFlop, fit_isoflops
from trainrig.scaling.regression.profile_likelihood import Profile

LAW = Parametric(E=1.8, A=482.0, B=2085.0, alpha=0.348, beta=0.366)
BEST = LAW.compute_optimum(np.geomspace(1e18, 1e22, 9))
UP = np.array([1.0, 2.0, 3.0])


def test_contours_are_where_the_law_has_that_loss():
    ax = Figure().add_subplot()
    surface = compute_surface(LAW, (1e8, 1e11), (1e9, 1e12))
    draw_on(ax, draw_contours(surface, (BEST.parameters, BEST.tokens), mark_chosen(3e9, 6e10)))
    contours: Any = ax.collections[0]
    for level, path in zip(contours.levels, contours.get_paths(), strict=True):
        if len(path.vertices):
            loss = LAW.compute_loss(path.vertices[:, 0], path.vertices[:, 1])
            assert loss == pytest.approx(np.full(len(loss), level), rel=2e-3)
    chosen = next(line for line in ax.get_lines() if line.get_label() == "this plan")
    assert chosen.get_xydata().tolist() == [[3e9, 6e10]]


def test_agreement_marks_the_held_out_apart():
    plot = draw_agreement(UP + 0.1, UP, (UP[:1] - 0.1, UP[:1]))
    diagonal, fitted, held_out = plot.marks
    assert diagonal.x == diagonal.y == [pytest.approx(0.9), pytest.approx(3.1)]
    assert (fitted.x.tolist(), fitted.y.tolist()) == (UP.tolist(), (UP + 0.1).tolist())
    assert (held_out.x.tolist(), held_out.y.tolist()) == ([1.0], [pytest.approx(0.9)])
    assert [mark.style for mark in plot.marks] == ["--", "o", "D"]


def make_runs() -> RunsTable:
    flops, sizes = np.meshgrid(np.geomspace(1e18, 1e20, 3), np.geomspace(0.25, 4, 6))
    sizes = (sizes * LAW.compute_optimum(flops).parameters).ravel()
    tokens = flops.ravel() / 6 / sizes
    loss = LAW.compute_loss(sizes, tokens)
    return RunsTable.of(parameters=sizes, tokens=tokens, loss=loss, budget=flops.ravel())


@pytest.mark.parametrize("settings", [IsoFlop(), IsoFlop(nearest=4)])
def test_a_parabola_has_its_lowest_point_marked_and_its_budget_named(settings):
    """A parabola may leave out sizes of its budget, which has a minimum all the same."""
    runs = make_runs()
    fit = fit_isoflops(runs, settings)
    found = draw_isoflops(runs, fit, settings)
    marks = found["plot"].marks
    lowest = [(mark.x[0], mark.y[0]) for mark in marks if getattr(mark, "style", "") == "D"]
    assert lowest == [(bowl.parameters, bowl.loss) for bowl in fit.bowls]
    assert (found["budgets"], found["minima"], found["runs"]) == (3, 3, 18)
    names = {mark.text for mark in marks if isinstance(mark, Note)}
    assert names == {"1e18", "1e19", "1e20"}
    bowls = [mark for mark in marks if isinstance(mark, Line) and mark.width == 1.6]
    assert all(min(bowl.y) >= at[1] - 1e-12 for bowl, at in zip(bowls, lowest, strict=True))


def test_names_of_budgets_that_would_lie_upon_each_other_are_left_out():
    ends = [(4e8, 2.5, 1e19), (4e8, 2.5, 1.1e19), (4e8, 2.0, 1e20)]
    assert [note.text for note in _name_budgets(ends, 0.01)] == ["1e19", "1e20"]


def test_an_open_end_of_a_profile_has_no_mark():
    profile = Profile(
        values=UP,
        rises=np.array([1.5, 0.0, 0.4]),
        cutoff=1.0,
        best=2.0,
        interval=Interval(low=1.2, high=None),
    )
    found = draw_profile("beta", profile)
    curve, _, best, ends = found["plot"].marks
    assert (curve.x.tolist(), curve.y.tolist()) == ([1.0, 2.0, 3.0], [1.5, 0.0, 0.4])
    assert (best.x, ends.x, ends.y.tolist()) == ([2.0], [1.2], [1.0])
    assert (found["low"], found["high"]) == ("from 1.2", "no bound above")
