"""Histograms as SVG, compared with matplotlib's coordinates for the same limits."""

from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from trainrig.report.histogram import BOTTOM, RIGHT, draw_histogram
from trainrig.report.number_formats import format_short
from trainrig.report.plots import Histogram

COUNTS = [((0.0, 1.0), 3), ((1.0, 2.0), 5), ((2.0, 4.0), 10), ((64.0, 128.0), 1_200)]
SHARES = [((0.0, 0.1), 3), ((0.1, 0.2), 5), ((0.9, 1.0), 10)]
SVG = "{http://www.w3.org/2000/svg}"


def find_elements(svg, name):
    return list(ElementTree.fromstring(svg).iter(SVG + name))


def find_bars(svg):
    """Return each bar's left, right and top edge."""
    found = []
    for bar in find_elements(svg, "rect"):
        x, y, width, height = (float(bar.attrib[n]) for n in ("x", "y", "width", "height"))
        assert y + height == pytest.approx(BOTTOM, abs=0.02)
        found.append((x, x + width, y))
    return np.array(found)


def list_texts(svg):
    return [element.text for element in find_elements(svg, "text")]


@pytest.mark.parametrize("bins", [COUNTS, [*COUNTS, ((128.0, None), 40)], SHARES])
@pytest.mark.parametrize("bound", [0.3, 50.0])
def test_bars_and_bounds_are_where_matplotlib_draws_them(bins, bound):
    svg = draw_histogram(Histogram(bins, [bound]))
    edges = np.array([[least, 2 * least if most is None else most] for (least, most), _ in bins])
    ax = Figure().add_subplot()
    if edges.max() > 2:
        ax.set_xscale("symlog", linthresh=1)
    scale = ax.xaxis.get_transform().transform
    whole = 1.05 * scale(np.array([max(edges.max(), bound)]))[0]
    found = find_bars(svg)
    left = found[0, 0]  # the axes' left edge, as the first bar begins at 0
    wanted = left + scale(edges.ravel()).reshape(edges.shape) / whole * (RIGHT - left)
    np.testing.assert_allclose(found[:, :2], wanted, atol=0.02)
    heights = (BOTTOM - found[:, 2]) / (BOTTOM - found[:, 2]).max()
    numbers = np.array([number for _, number in bins])
    np.testing.assert_allclose(heights, numbers / numbers.max(), atol=2e-4)
    (line,) = [p for p in find_elements(svg, "path") if "--c2" in p.attrib["style"]]
    place = left + scale(np.array([bound]))[0] / whole * (RIGHT - left)
    assert float(line.attrib["d"].split()[1]) == pytest.approx(place, abs=0.02)
    assert list_texts(svg)[-1] == format_short(bound)


def test_scales_are_labelled_in_round_numbers():
    assert list_texts(draw_histogram(Histogram(COUNTS, []))) == [
        *("0", "1", "10", "100"),
        *("0", "200", "400", "600", "800", "1,000", "1,200", "documents"),
    ]
    assert list_texts(draw_histogram(Histogram(SHARES, []))) == [
        *("0", "0.2", "0.4", "0.6", "0.8", "1"),
        *("0", "2", "4", "6", "8", "10", "documents"),
    ]
    assert list_texts(draw_histogram(Histogram([((0.0, 1.0), 1)])))[-3:] == ["0", "1", "documents"]


@given(
    st.lists(st.integers(1, 10**12), min_size=1, max_size=6),
    st.floats(1e-9, 1e15),
    st.lists(st.floats(0, 1e15), max_size=2),
)
def test_all_elements_are_inside_the_drawing(numbers, width, bounds):
    bins = [((n * width, (n + 1) * width), number) for n, number in enumerate(numbers)]
    svg = draw_histogram(Histogram(bins, bounds))
    found = find_bars(svg)
    assert (found >= 0).all() and (found[:, :2] <= RIGHT + 0.01).all()
    shown = [element for element in find_elements(svg, "text") if "transform" not in element.attrib]
    assert all(0 <= float(element.attrib["x"]) <= 420 for element in shown)
    assert 4 <= len(shown) <= 2 * 10 + len(bounds)
    assert "#" not in svg
