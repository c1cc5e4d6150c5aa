"""SVG plots: themed, self-contained, reproducible, and read back from their Axes."""

import os
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from trainrig.report import page_rendering, plot_drawing, plots
from trainrig.report.plot_drawing import COLOURS, draw, draw_on, thin
from trainrig.report.plots import Axis, BarPart, BarRow, Bars, BeforeAfter, Line, Pairs, Plot

PARTS = (BarPart("kept"), BarPart("dropped", "c2", hatched=True))
ROWS = (
    BarRow("all pages", (10, 0), "10"),
    BarRow("too short", (7, 3), "−3"),
    BarRow("kept", (7, 0), "7"),
)
PROGRAM = """
from trainrig.report.plot_drawing import draw
from trainrig.report.plots import *
print(draw(Bars([BarRow("a", (1,), "1")], Axis("n"), [BarPart("p", hatched=True)])))
"""
UP = np.array([1.0, 2, 3, 4])


@pytest.fixture
def ax():
    return Figure().add_subplot()


def draw_curve(points: int = 50, *more: plots.Mark) -> Plot:
    x = np.arange(points, dtype=np.float64)
    marks = [*plots.smooth(x, np.sin(x), 5), *more]
    return Plot(marks, Axis("step"), Axis("loss (nats per token)"), height=200)


EVENTS = (
    plots.Event(12.0, "1", circled=True),
    plots.Event(20.0, "spike, rolled back", since=15.0),
    Line(UP, UP / 4, "held-out", "c3", "D--"),
)
LOG = (Axis("FLOPs", "power", log=True, low=1e18, high=1e24), Axis("tokens", log=True))
GRID = np.geomspace(1, 100, 20)
PLOTS = {
    "rows": Bars(ROWS, Axis("documents"), PARTS),
    "pairs": Pairs([BeforeAfter("docs", 2.0, 1.5)], Axis("bits per byte")),
    "intervals": plots.Intervals(
        [plots.IntervalRow("web", 0.5, 0.4, 0.6, 0.3)], Axis("share", "percent"), ("new", "old")
    ),
    "curve": draw_curve(),
    "interrupted": draw_curve(50, *EVENTS),
    "log": Plot(
        [
            Line(1e19 * UP, 5e8 * UP, "law", error=[1e7] * 4, style="o"),
            plots.Band(1e19 * UP, UP * 1e8, UP * 1e9),
            plots.Rule(6e8, name="chance"),
            plots.Span(1e19, 2e19, "compute of the runs"),
            plots.Note(1e19, 5e8, "1e19"),
        ],
        *LOG,
    ),
    "heat": Plot([plots.Heat(UP, [0, 1], np.array([[0.1, np.nan, 1]] * 2))], Axis("x"), Axis("y")),
    "contours": Plot(
        [plots.Contours(GRID, GRID, np.add.outer(GRID, GRID), GRID[5:9])],
        Axis("parameters", log=True, low=1, high=100),
        Axis("tokens", log=True, low=1, high=100),
    ),
    "columns": Plot([plots.Columns([[3, 2], [1, 0]], PARTS)], Axis("x", names="ab"), Axis("y")),
}
every_plot = pytest.mark.parametrize("plot", PLOTS.values(), ids=PLOTS.keys())


def ids_and_references(svg: str) -> tuple[list[str], set[str]]:
    root = ElementTree.fromstring(svg)
    values = [value for element in root.iter() for value in element.attrib.values()]
    references = {found for value in values for found in re.findall(r"url\(#([^)]+)\)", value)}
    references |= {e.attrib["href"].lstrip("#") for e in root.iter() if "href" in e.attrib}
    return [e.attrib["id"] for e in root.iter() if "id" in e.attrib], references


@every_plot
def test_each_reference_resolves_inside_its_own_drawing(plot):
    ids, references = ids_and_references(draw(plot))
    assert sorted(ids) == sorted(references)


def test_different_drawings_on_one_page_share_no_id():
    taken = [set(ids_and_references(draw(plot))[0]) for plot in PLOTS.values()]
    assert sum(map(len, taken)) == len(set.union(*taken))


@every_plot
def test_colours_are_the_themes_and_nothing_else(plot):
    svg = draw(plot)
    assert "#0a0b" not in svg
    assert not re.search(r"#[0-9a-f]{6}\b(?!-)", svg.replace('href="#', 'href="'))
    assert set(re.findall(r"var\(--(\w+)\)", svg)) >= {"muted", "grid"}


def test_each_named_colour_is_in_both_themes():
    assert COLOURS.keys() <= page_rendering.LIGHT.keys() & page_rendering.DARK.keys()
    assert len(COLOURS) == len(set(COLOURS.values())) == 8


@every_plot
def test_the_drawing_carries_no_style_metadata_size_or_outside_address(plot):
    root = ElementTree.fromstring(draw(plot))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    height = plot_drawing.choose_height(plot)
    assert root.attrib == {"viewBox": f"0 0 420 {height}"}
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not names & {"style", "metadata", "script", "image", "foreignObject"}
    text = ElementTree.tostring(root, encoding="unicode").replace("http://www.w3.org/2000/svg", "")
    assert "http" not in text
    assert "font-family" not in text


@every_plot
def test_the_same_plot_gives_the_same_bytes(plot):
    assert draw(plot) == draw(plot)


@pytest.mark.slow
def test_another_process_with_settings_of_its_own_gives_the_same_bytes(tmp_path):
    (tmp_path / "matplotlibrc").write_text("font.size: 31\naxes.facecolor: red\nsvg.id: x\n")
    source = Path(plot_drawing.__file__).parents[2]
    plain, other = (
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"PYTHONPATH": str(source), "PYTHONHASHSEED": seed} | more,
            capture_output=True,
            check=True,
        ).stdout
        for seed, more in (("1", {}), ("2", {"MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}))
    )
    assert b"var(--c1)" in plain
    assert plain == other


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "a\"b' & $x^2$", "你好，世界"])
def test_a_label_is_plain_text_even_if_hostile(text):
    row = BarRow(text, (1,), text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = draw(Bars([row], Axis("n")))
    shown = [e.text for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("}text")]
    assert shown.count(text) == 2


def test_a_label_with_invisible_characters_still_makes_xml():
    row = BarRow("a\x00\u202eb", (1,), "\ud800")
    svg = draw(Bars([row], Axis("n")))
    assert "a⟨U+0000⟩⟨U+202E⟩b" in ElementTree.tostring(
        ElementTree.fromstring(svg), encoding="unicode"
    )


def test_a_long_name_is_cut_so_that_it_does_not_run_into_its_value(ax):
    draw_on(ax, Bars([BarRow("x" * 60, (1,), "1")], Axis("n")))
    assert "x" * 33 + "…" in [text.get_text() for text in ax.texts]


def test_a_hundred_thousand_points_stay_small():
    assert len(draw(draw_curve(100_000))) < 60_000


@given(st.lists(st.floats(-1e9, 1e9), min_size=40, max_size=200), st.integers(10, 50))
def test_thinning_keeps_the_ends_and_the_extremes_within_its_limit(values, limit):
    y = np.array(values)
    x = np.arange(len(y), dtype=np.float64)
    thin_x, thin_y = thin(x, y, limit)
    assert len(thin_x) <= limit or len(y) <= limit
    assert (thin_x[0], thin_x[-1]) == (x[0], x[-1])
    assert (thin_y.min(), thin_y.max()) == (y.min(), y.max())
    assert np.array_equal(thin_y, y[thin_x.astype(int)])
    assert (np.diff(thin_x) > 0).all()


def test_thinning_works_on_buckets_of_x_not_of_points():
    crowded = np.concatenate([np.linspace(0, 1, 1_000), np.linspace(10, 100, 10)])
    x, _ = thin(crowded, np.zeros(len(crowded)), limit=50)
    assert (x > 1).sum() == 10


def test_thinning_keeps_gaps_and_stays_within_its_limit():
    y = np.sin(np.arange(5_000.0))
    y[2_000:2_100] = np.nan
    thin_x, thin_y = thin(np.arange(5_000.0), y, limit=200)
    assert len(thin_x) <= 200
    gap = thin_x[np.isnan(thin_y)]
    assert len(gap)
    assert ((gap >= 2_000) & (gap < 2_100)).all()


def test_the_trailing_mean_of_a_small_case():
    assert plots.compute_trailing_mean(np.array([4.0, 2, 6, 1]), 3).tolist() == [4, 3, 4, 3]


def test_steps_that_a_later_attempt_repeated_are_superseded():
    # Attempt 0 took steps 1 to 4; 1 resumed from 2 and took 3 to 5; 2 resumed from 3 and took 4.
    steps = np.array([1, 2, 3, 4, 3, 4, 5, 4])
    attempts = np.array([0, 0, 0, 0, 1, 1, 1, 2])
    thrown = plots.find_superseded(steps, attempts)
    assert thrown.tolist() == [False, False, True, True, False, True, True, False]


def test_rows_are_drawn_end_to_end_from_top_to_bottom(ax):
    draw_on(ax, PLOTS["rows"])
    bars = [p for p in ax.patches if isinstance(p, Rectangle)]
    drawn = {(round(b.get_y() + b.get_height() / 2), b.get_x(), b.get_width()) for b in bars}
    assert drawn == {(0, 0, 10), (1, 0, 7), (1, 7, 3), (2, 0, 7)}
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert ax.get_xlim() == (0, 10)
    assert ax.get_xlabel() == "documents"
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["kept", "dropped"]


def test_rows_of_nothing_can_be_drawn(ax):
    draw_on(ax, Bars([BarRow("none", (0,), "0")], Axis("documents")))
    assert not ax.patches
    assert ax.get_xlim() == (0, 1)


def test_pairs_are_sorted_by_gain_and_differ_in_fill(ax):
    pairs = [BeforeAfter("worse", 1.0, 1.2), BeforeAfter("better", 3.0, 1.5)]
    draw_on(ax, Pairs(pairs, Axis("bits per byte"), ("old", "new")))
    before, after = ax.lines
    assert before.get_xdata().tolist() == [3.0, 1.0]
    assert after.get_xdata().tolist() == [1.5, 1.2]
    assert before.get_markerfacecolor() == COLOURS["paper"]
    assert after.get_markerfacecolor() == COLOURS["c1"]
    assert [t.get_text() for t in ax.texts if t.get_text().isalpha()] == ["better", "worse"]
    places = {t.get_text(): t.get_ha() for t in ax.texts if not t.get_text().isalpha()}
    assert places == {"3": "left", "1.5": "right", "1": "right", "1.2": "left"}


def test_a_pair_that_did_not_move_writes_its_two_values_on_two_sides(ax):
    draw_on(ax, Pairs([BeforeAfter("same", 2.0, 2.0)], Axis("bits per byte")))
    assert sorted(t.get_ha() for t in ax.texts[:2]) == ["left", "right"]


def test_intervals_stand_in_rows_with_the_other_values_as_circles(ax):
    rows = [plots.IntervalRow("web", 0.7, 0.6, 0.8, 0.5), plots.IntervalRow("code", 0.3)]
    draw_on(ax, plots.Intervals(rows, Axis("share"), ("proposed", "average")))
    drawn = [[list(end) for end in line.get_data()] for line in ax.lines]
    assert drawn == [[[0.6, 0.8], [0, 0]], [[0.5], [0]], [[0.7], [0]], [[0.3], [1]]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["proposed", "average"]
    assert [text.get_text() for text in ax.texts] == ["web", "code"]


def test_a_curve_is_its_values_faint_and_their_mean_bold(ax):
    marks = plots.smooth(np.arange(3.0), np.array([3.0, 1, 2]), 2)
    draw_on(ax, Plot(marks, Axis("step"), Axis("loss (nats)")))
    raw, mean = ax.lines
    assert raw.get_ydata().tolist() == [3, 1, 2]
    assert mean.get_ydata().tolist() == [3, 2, 1.5]
    assert raw.get_alpha() < 1
    assert raw.get_linewidth() < mean.get_linewidth()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "loss (nats)")
    assert ax.get_legend() is None


def test_events_are_lines_over_the_steps_that_they_undid(ax):
    draw_on(ax, draw_curve(50, *EVENTS))
    lines = {line.get_label(): line for line in ax.lines}
    assert lines["held-out"].get_xydata().tolist() == [[x, x / 4] for x in UP]
    assert [line.get_xdata()[0] for line in ax.lines if len(line.get_xdata()) == 2] == [12, 20]
    assert [text.get_text() for text in ax.texts] == ["1", "spike, rolled back"]
    assert ax.patches[0].get_x() == 15 and ax.patches[0].get_width() == 5


def test_an_axis_ends_with_the_run_unless_a_marker_would_be_cut(ax):
    losses = Line([1, 2, 254], [9.0, 8.0, 4.0])
    draw_on(ax, Plot([losses, plots.Event(100, "killed")], Axis("step"), Axis("loss")))
    assert ax.get_xlim() == (1, 254)
    points = replace(losses, style="o")
    other = Figure().add_subplot()
    draw_on(other, Plot([losses, points], Axis("step"), Axis("loss")))
    low, high = other.get_xlim()
    assert low < 1 and high > 254


@pytest.mark.parametrize("span", [1.4, 2.0, 9.0, 1e3, 1e8])
def test_a_logarithmic_axis_has_labels_that_are_not_tex(ax, span):
    line = Line([1e3, 1e3 * span], [1.0, 2.0])
    draw_on(ax, Plot([line], Axis("tokens", log=True), Axis("loss")))
    low, high = ax.get_xlim()
    labels = [
        label.get_text()
        for at, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
        if low <= at <= high
    ]
    assert 2 <= len(labels) <= 8
    assert not any("$" in label or "^" in label for label in labels)


def test_contours_are_where_the_value_is(ax):
    draw_on(ax, PLOTS["contours"])
    contours = ax.collections[0]
    for level, path in zip(contours.levels, contours.get_paths(), strict=True):
        if len(path.vertices):
            found = path.vertices.sum(axis=1)
            assert found == pytest.approx(np.full(len(found), level), rel=0.05)
