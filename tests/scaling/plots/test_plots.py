"""Plots of scaling laws, read back from their Axes: each point is where its data is."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from trainrig import figures
from trainrig.scaling.fit.law_views import compute_surface
from trainrig.scaling.law_plots import (
    Agreement,
    Band,
    LossCurve,
    OtherWay,
    Parabola,
    Profiled,
    Residuals,
    plot_agreement,
    plot_contours,
    plot_isoflops,
    plot_loss_curves,
    plot_optimum,
    plot_profile,
    plot_residuals,
)
from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.plan_plots import (
    RepeatedTokens,
    Served,
    Share,
    plot_epochs,
    plot_served,
    plot_shares,
    plot_trajectory,
)

LAW = Parametric(E=1.8, A=482.0, B=2085.0, alpha=0.348, beta=0.366)
FLOPS = np.geomspace(1e18, 1e22, 9)
BEST = LAW.compute_optimum(FLOPS)
UP = np.array([1.0, 2.0, 3.0])


@pytest.fixture
def ax():
    return Figure().add_subplot()


def lines(ax):
    return [
        (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist())
        for line in ax.get_lines()
    ]


def test_each_training_curve_is_drawn_and_the_least_of_all_above_them(ax):
    curves = [LossCurve(UP * 1e18, 4 / UP), LossCurve(np.array([5e18]), np.array([2.0]))]
    plot_loss_curves(ax, curves, (UP * 1e18, 3 / UP))
    assert lines(ax)[0] == ([1e18, 2e18, 3e18], [4.0, 2.0, 4 / 3])
    assert lines(ax)[1] == ([5e18], [2.0])
    assert ax.get_lines()[1].get_marker() == "."  # a single point has no line
    assert lines(ax)[2][1] == [3.0, 1.5, 1.0]
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_a_parabola_has_its_lowest_point_marked_and_a_budget_without_one_has_no_mark(ax):
    inside = Parabola(1e19, np.array([1e8, 2e8, 4e8]), np.array([3.1, 3.0, 3.1]), (2e8, 3.0), 0.2)
    edge = Parabola(1e20, np.array([1e8, 2e8]), np.array([2.9, 2.8]))
    plot_isoflops(ax, [inside, edge])
    marks = [
        xy for line, xy in zip(ax.get_lines(), lines(ax), strict=True) if line.get_marker() == "D"
    ]
    assert marks == [([2e8], [3.0])]
    bowl = lines(ax)[1]
    assert bowl[1][0] == pytest.approx(3.0 + 0.2 * np.log(2) ** 2)
    dotted = [line for line in ax.get_lines() if line.get_linestyle() == ":"]
    assert [line.get_xdata().tolist() for line in dotted] == [[1e8, 2e8]]
    assert {text.get_text() for text in ax.texts} == {"1e19", "1e20"}


def test_names_of_budgets_that_would_lie_upon_each_other_are_left_out(ax):
    sizes = np.array([1e8, 4e8])
    same = [Parabola(c, sizes, np.array([3.0, 2.5])) for c in (1e19, 1.1e19)]
    plot_isoflops(ax, [*same, Parabola(1e20, sizes, np.array([2.9, 2.0]))])
    assert len(ax.texts) == 2


def test_the_optimum_is_drawn_with_its_band_and_the_other_ways(ax):
    band = Band(FLOPS, BEST.parameters, BEST.parameters / 2, BEST.parameters * 2)
    other = OtherWay("parabolas", FLOPS[:2], BEST.tokens[:2], points=True)
    plot_optimum(ax, band, "best parameters", [other], (1e18, 1e20))
    assert lines(ax)[0] == (FLOPS.tolist(), BEST.parameters.tolist())
    assert lines(ax)[1] == (FLOPS[:2].tolist(), BEST.tokens[:2].tolist())
    corners = ax.collections[0].get_paths()[0].vertices
    assert corners[:, 1].max() == pytest.approx(2 * BEST.parameters[-1])
    assert corners[:, 1].min() == pytest.approx(BEST.parameters[0] / 2)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["this law", "parabolas", "compute of the runs"]


def test_contours_are_where_the_law_has_that_loss(ax):
    grid = compute_surface(LAW, (1e8, 1e11), (1e9, 1e12))
    runs = (np.array([1e9]), np.array([2e10]))
    plot_contours(ax, grid, (BEST.parameters, BEST.tokens), runs, chosen=(3e9, 6e10))
    assert lines(ax)[0] == ([1e9], [2e10])
    assert lines(ax)[-1] == ([3e9], [6e10])
    contours = ax.collections[0]
    for level, path in zip(contours.levels, contours.get_paths(), strict=True):
        if len(path.vertices):
            loss = LAW.compute_loss(path.vertices[:, 0], path.vertices[:, 1])
            assert loss == pytest.approx(np.full(len(loss), level), rel=2e-3)


def test_agreement_marks_the_held_out_apart(ax):
    plot_agreement(ax, Agreement(UP, UP + 0.1), Agreement(UP[:1], UP[:1] - 0.1))
    diagonal, fitted, held_out = lines(ax)
    assert diagonal[0] == diagonal[1] == [pytest.approx(0.9), pytest.approx(3.1)]
    assert fitted == ((UP + 0.1).tolist(), UP.tolist())
    assert held_out == ([pytest.approx(0.9)], [1.0])
    assert [line.get_marker() for line in ax.get_lines()[1:]] == ["o", "D"]


def test_residuals_stand_against_the_size(ax):
    plot_residuals(ax, Residuals(UP * 1e8, UP / 100), "parameters", Residuals(UP * 1e9, UP / 50))
    assert lines(ax)[1:] == [
        ((UP * 1e8).tolist(), (UP / 100).tolist()),
        ((UP * 1e9).tolist(), (UP / 50).tolist()),
    ]
    assert ax.get_xlabel() == "parameters"


def test_an_open_end_of_a_profile_has_no_mark(ax):
    plot_profile(ax, Profiled("beta", UP, np.array([1.5, 0.0, 0.4]), 2.0, 1.2, None))
    drawn = lines(ax)
    assert drawn[0] == ([1.0, 2.0, 3.0], [1.5, 0.0, 0.4])
    assert drawn[2] == ([2.0], [0])
    assert drawn[3] == ([1.2], [1.0])


def test_served_and_repeated_tokens_have_the_plan_on_them(ax):
    plot_served(ax, Served(UP * 1e12, UP * 20, 20.0), chosen=(2e12, 40.0))
    assert lines(ax)[0] == ((UP * 1e12).tolist(), [20.0, 40.0, 60.0])
    assert lines(ax)[-1] == ([2e12], [40.0])
    other = Figure().add_subplot()
    plot_epochs(
        other, RepeatedTokens(UP, np.array([1.0, 1.9, 2.7]) * 1e9, 1e9), chosen=(2.0, 1.9e9)
    )
    assert lines(other) == [
        ([1.0, 2.0, 3.0], [1e9, 2e9, 3e9]),
        ([1.0, 2.0, 3.0], [1e9, 1.9e9, 2.7e9]),
        ([2.0], [1.9e9]),
    ]


def test_a_trajectory_has_its_band(ax):
    plot_trajectory(ax, Band(UP * 1e9, 4 - UP, 3.9 - UP, 4.1 - UP))
    assert lines(ax) == [((UP * 1e9).tolist(), [3.0, 2.0, 1.0])]
    assert ax.collections[0].get_paths()[0].vertices[:, 1].max() == pytest.approx(3.1)


def test_shares_stand_in_rows_with_their_intervals(ax):
    plot_shares(ax, [Share("web", 0.7, 0.6, 0.8, 0.5), Share("code", 0.3, 0.2, 0.4, 0.5)])
    average, proposed = lines(ax)
    assert average[0] == [0.5, 0.5]
    assert proposed == ([0.7, 0.3], [0, 1])
    ends = [segment[:, 0].tolist() for segment in ax.collections[0].get_segments()]
    assert ends == [[0.6, 0.8], [0.2, 0.4]]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["web", "code"]


DRAWN = {
    "curves": lambda ax: plot_loss_curves(ax, [LossCurve(UP * 1e18, 4 / UP)], (UP * 1e18, 3 / UP)),
    "parabola": lambda ax: plot_isoflops(
        ax, [Parabola(1e19, UP * 1e8, np.array([3.1, 3.0, 3.1]), (2e8, 3.0), 0.2)]
    ),
    "optimum": lambda ax: plot_optimum(ax, Band(FLOPS, BEST.tokens), "best tokens"),
    "contours": lambda ax: plot_contours(
        ax, compute_surface(LAW, (1e8, 1e11), (1e9, 1e12)), (BEST.parameters, BEST.tokens)
    ),
    "agreement": lambda ax: plot_agreement(ax, Agreement(UP, UP), Agreement(UP, UP)),
    "residuals": lambda ax: plot_residuals(ax, Residuals(UP * 1e8, UP), "tokens"),
    "profile": lambda ax: plot_profile(ax, Profiled("E", UP, UP - 1, 1.0, None, 2.0)),
    "served": lambda ax: plot_served(ax, Served(UP * 1e12, UP * 20, 20.0)),
    "epochs": lambda ax: plot_epochs(ax, RepeatedTokens(UP, UP * 1e9, 1e9)),
}


@pytest.mark.parametrize("plot", DRAWN.values(), ids=DRAWN.keys())
def test_every_axis_has_its_unit_and_colours_are_the_themes(plot, ax):
    plot(ax)
    assert ax.get_xlabel() and ax.get_ylabel()
    svg = figures.draw(plot, 240)
    assert "#0a0b" not in svg
    assert "$" not in svg  # no label is left as mathtext
    assert svg == figures.draw(plot, 240)
