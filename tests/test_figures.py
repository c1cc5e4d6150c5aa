"""SVG plots: themed, self-contained, reproducible, and read back from their Axes."""

import os
import re
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from trainrig import figures, report
from trainrig.figures import C1, C2, BarPart, BarRow, BeforeAfter, Interruptions, NoisyCurve

PARTS = (BarPart("kept", C1), BarPart("dropped", C2, hatched=True))
ROWS = (
    BarRow("all pages", (10, 0), "10"),
    BarRow("too short", (7, 3), "−3"),
    BarRow("kept", (7, 0), "7"),
)
PROGRAM = """
from trainrig import figures
print(figures.draw(lambda ax: figures.plot_rows(
    ax, [figures.BarRow("a", (1,), "1")],
    [figures.BarPart("p", figures.C1, hatched=True)], "n"), 100))
"""


@pytest.fixture
def ax():
    return Figure().add_subplot()


def draw_curve(points: int = 50) -> NoisyCurve:
    x = np.arange(points, dtype=np.float64)
    return NoisyCurve(x, np.sin(x), 5, "step", "loss (nats per token)")


def draw_interrupted(ax):
    x = np.array([10.0, 11, 12])
    events = Interruptions((np.array([0.0, 49]), np.array([0.5, 0.2])), [(x, x / 10)], [12.0])
    return figures.plot_interrupted_curve(ax, draw_curve(), events)


PLOTS = {
    "rows": partial(figures.plot_rows, rows=ROWS, parts=PARTS, x_label="documents"),
    "pairs": partial(
        figures.plot_pairs, pairs=[BeforeAfter("docs", 2.0, 1.5)], x_label="bits per byte"
    ),
    "curve": partial(figures.plot_curve, curve=draw_curve()),
    "interrupted": draw_interrupted,
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
    ids, references = ids_and_references(figures.draw(plot, 200))
    assert references
    assert sorted(ids) == sorted(references)


def test_different_drawings_on_one_page_share_no_id():
    taken = [set(ids_and_references(figures.draw(plot, 200))[0]) for plot in PLOTS.values()]
    assert sum(map(len, taken)) == len(set.union(*taken))


@every_plot
def test_colours_are_the_themes_and_nothing_else(plot):
    svg = figures.draw(plot, 200)
    assert "#0a0b" not in svg
    assert not re.search(r"#[0-9a-f]{6}\b(?!-)", svg.replace('href="#', 'href="'))
    assert set(re.findall(r"var\(--(\w+)\)", svg)) >= {"c1", "ink", "muted"} - {"ink"}


def test_each_named_colour_is_in_both_themes():
    names = {variable.removeprefix("--") for variable in figures._VARIABLES.values()}
    assert names <= report.LIGHT.keys() & report.DARK.keys()
    assert len(figures._VARIABLES) == 8


@every_plot
def test_the_drawing_carries_no_style_metadata_size_or_outside_address(plot):
    root = ElementTree.fromstring(figures.draw(plot, 200))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.attrib == {"viewBox": "0 0 420 200"}
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not names & {"style", "metadata", "script", "image", "foreignObject"}
    text = ElementTree.tostring(root, encoding="unicode").replace("http://www.w3.org/2000/svg", "")
    assert "http" not in text
    assert "font-family" not in text


@every_plot
def test_the_same_plot_gives_the_same_bytes(plot):
    assert figures.draw(plot, 200) == figures.draw(plot, 200)


@pytest.mark.slow
def test_another_process_with_settings_of_its_own_gives_the_same_bytes(tmp_path):
    (tmp_path / "matplotlibrc").write_text("font.size: 31\naxes.facecolor: red\nsvg.id: x\n")
    source = Path(figures.__file__).parents[1]
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
        svg = figures.draw(partial(figures.plot_rows, rows=[row], parts=PARTS[:1], x_label="n"), 90)
    shown = [e.text for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("}text")]
    assert shown.count(text) == 2


def test_a_label_with_invisible_characters_still_makes_xml():
    row = BarRow("a\x00\u202eb", (1,), "\ud800")
    svg = figures.draw(partial(figures.plot_rows, rows=[row], parts=PARTS[:1], x_label="n"), 90)
    assert "a⟨U+0000⟩⟨U+202E⟩b" in ElementTree.tostring(
        ElementTree.fromstring(svg), encoding="unicode"
    )


def test_a_long_name_is_cut_so_that_it_does_not_run_into_its_value(ax):
    figures.plot_rows(ax, [BarRow("x" * 60, (1,), "1")], PARTS[:1], "n")
    assert ax.texts[0].get_text() == "x" * 33 + "…"


def test_a_hundred_thousand_points_stay_small():
    svg = figures.draw(partial(figures.plot_curve, curve=draw_curve(100_000)), 200)
    assert len(svg) < 60_000


@given(st.lists(st.floats(-1e9, 1e9), min_size=40, max_size=200), st.integers(10, 50))
def test_thinning_keeps_the_ends_and_the_extremes_within_its_limit(values, limit):
    y = np.array(values)
    x = np.arange(len(y), dtype=np.float64)
    thin_x, thin_y = figures.thin(x, y, limit)
    assert len(thin_x) <= limit or len(y) <= limit
    assert (thin_x[0], thin_x[-1]) == (x[0], x[-1])
    assert (thin_y.min(), thin_y.max()) == (y.min(), y.max())
    assert np.array_equal(thin_y, y[thin_x.astype(int)])
    assert (np.diff(thin_x) > 0).all()


def test_thinning_works_on_buckets_of_x_not_of_points():
    crowded = np.concatenate([np.linspace(0, 1, 1_000), np.linspace(10, 100, 10)])
    x, _ = figures.thin(crowded, np.zeros(len(crowded)), limit=50)
    assert (x > 1).sum() == 10


def test_thinning_keeps_gaps_and_stays_within_its_limit():
    y = np.sin(np.arange(5_000.0))
    y[2_000:2_100] = np.nan
    thin_x, thin_y = figures.thin(np.arange(5_000.0), y, limit=200)
    assert len(thin_x) <= 200
    gap = thin_x[np.isnan(thin_y)]
    assert len(gap)
    assert ((gap >= 2_000) & (gap < 2_100)).all()


def test_the_trailing_mean_of_a_small_case():
    assert figures.compute_trailing_mean(np.array([4.0, 2, 6, 1]), 3).tolist() == [4, 3, 4, 3]


def test_steps_that_a_later_attempt_repeated_are_superseded():
    # Attempt 0 took steps 1 to 4; 1 resumed from 2 and took 3 to 5; 2 resumed from 3 and took 4.
    steps = np.array([1, 2, 3, 4, 3, 4, 5, 4])
    attempts = np.array([0, 0, 0, 0, 1, 1, 1, 2])
    thrown = figures.find_superseded(steps, attempts)
    assert thrown.tolist() == [False, False, True, True, False, True, True, False]


def test_rows_are_drawn_end_to_end_from_top_to_bottom(ax):
    figures.plot_rows(ax, ROWS, PARTS, "documents")
    bars = [p for p in ax.patches if isinstance(p, Rectangle)]
    drawn = {(round(b.get_y() + b.get_height() / 2), b.get_x(), b.get_width()) for b in bars}
    assert drawn == {(0, 0, 10), (1, 0, 7), (1, 7, 3), (2, 0, 7)}
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert ax.get_xlim() == (0, 10)
    assert ax.get_xlabel() == "documents"
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["kept", "dropped"]


def test_rows_of_nothing_can_be_drawn(ax):
    figures.plot_rows(ax, [BarRow("none", (0,), "0")], PARTS[:1], "documents")
    assert not ax.patches
    assert ax.get_xlim() == (0, 1)


def test_pairs_are_sorted_by_gain_and_differ_in_fill(ax):
    pairs = [BeforeAfter("worse", 1.0, 1.2), BeforeAfter("better", 3.0, 1.5)]
    figures.plot_pairs(ax, pairs, "bits per byte", ("old", "new"))
    before, after = ax.lines
    assert before.get_xdata().tolist() == [3.0, 1.0]
    assert after.get_xdata().tolist() == [1.5, 1.2]
    assert before.get_markerfacecolor() == figures.PAPER
    assert after.get_markerfacecolor() == C1
    assert [t.get_text() for t in ax.texts if t.get_text().isalpha()] == ["better", "worse"]
    places = {t.get_text(): t.get_ha() for t in ax.texts if not t.get_text().isalpha()}
    assert places == {"3": "left", "1.5": "right", "1": "right", "1.2": "left"}


def test_a_pair_that_did_not_move_writes_its_two_values_on_two_sides(ax):
    figures.plot_pairs(ax, [BeforeAfter("same", 2.0, 2.0)], "bits per byte")
    assert sorted(t.get_ha() for t in ax.texts[1:]) == ["left", "right"]


def test_a_curve_is_its_values_faint_and_their_mean_bold(ax):
    figures.plot_curve(
        ax, NoisyCurve(np.arange(3.0), np.array([3.0, 1, 2]), 2, "step", "loss (nats)")
    )
    raw, mean = ax.lines
    assert raw.get_ydata().tolist() == [3, 1, 2]
    assert mean.get_ydata().tolist() == [3, 2, 1.5]
    assert raw.get_alpha() < 1
    assert raw.get_linewidth() < mean.get_linewidth()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "loss (nats)")


def test_an_interrupted_curve_shows_what_was_thrown_away_and_where_it_died(ax):
    draw_interrupted(ax)
    lines = {line.get_label(): line for line in ax.lines}
    assert lines["held-out"].get_xydata().tolist() == [[0, 0.5], [49, 0.2]]
    assert lines["thrown away"].get_xydata().tolist() == [[10, 1], [11, 1.1], [12, 1.2]]
    assert lines["thrown away"].get_linestyle() == ":"
    assert [line.get_xdata()[0] for line in ax.lines if line.get_xdata()[0] == 12.0] == [12.0]
    mean = figures.compute_trailing_mean(draw_curve().y, 5)[-1]
    assert [t.get_text() for t in ax.texts] == [
        "1",
        f"━ mean of 5 steps {mean:.2f}",
        "◆ held-out 0.20",
    ]
