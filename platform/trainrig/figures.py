"""Charts for report pages: matplotlib drawings as inline SVG that follows the page's theme.

A plot takes data and an Axes and draws in the named colours below, which are rare placeholder
colours. `draw` replaces each by the CSS variable of its name (`report.LIGHT`, `report.DARK`), so
one drawing serves the light theme, the dark theme and print. Text stays text in the SVG. The same
plot gives the same bytes.
"""

import hashlib
import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray

from trainrig.report import escape_invisible

WIDTH = 420  # CSS pixels: a phone scales it down a little, a wide page up by a third
MAX_POINTS = 1_000  # maximum number of points on one line, which take about 20 KB of SVG

INK, MUTED, GRID, PAPER = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04"
C1, C2, C3, C4 = "#0a0b05", "#0a0b06", "#0a0b07", "#0a0b08"
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    PAPER: "--paper",
    C1: "--c1",
    C2: "--c2",
    C3: "--c3",
    C4: "--c4",
}

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "trainrig",
    "text.parse_math": False,  # labels may contain dollar signs
    "font.family": "DejaVu Sans",  # comes with matplotlib, so text has the same size everywhere
    "font.size": 12,
    "axes.labelsize": 11,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "legend.labelcolor": MUTED,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "hatch.linewidth": 1.2,
}

Numbers = NDArray[np.float64]


def draw(plot: Callable[[Axes], object], height: int) -> str:
    """Return an SVG of what `plot` draws on an Axes, WIDTH by `height` CSS pixels unscaled."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        # Letters that DejaVu lacks get a wrong size here, but the reader's browser shows them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        matplotlib.rcdefaults()  # the user's matplotlibrc would change the bytes
        matplotlib.rcParams.update(_STYLE)
        # matplotlib's SVG has 72 units per inch. Here one unit is one CSS pixel.
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        plot(figure.add_subplot())
        drawing = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(drawing, format="svg", transparent=True, metadata=nothing)
    return _theme_svg(drawing.getvalue())


def _theme_svg(drawing: str) -> str:
    """Convert matplotlib's SVG to an HTML element with theme colours and unique ids."""
    root = ElementTree.fromstring(drawing)
    prefix = f"f{hashlib.sha256(drawing.encode()).hexdigest()[:8]}-"
    referred = set(re.findall(r'(?:url\(|href=")#([^)"]+)', drawing))
    for parent in list(root.iter()):
        for child in [c for c in parent if c.tag.endswith(("}style", "}metadata"))]:
            parent.remove(child)  # a <style> would affect the whole page
    for element in root.iter():
        element.tag = element.tag.partition("}")[2]
        element.attrib = {
            name: _rewrite_attribute(name, value, prefix)
            for name, value in ((n.rpartition("}")[2], v) for n, v in element.attrib.items())
            if name != "id" or value in referred
        }
        if "id" in element.attrib:
            element.set("id", prefix + element.attrib["id"])
    root.attrib = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": root.attrib["viewBox"]}
    return ElementTree.tostring(root, encoding="unicode")


def _rewrite_attribute(name: str, value: str, prefix: str) -> str:
    """Rewrite one attribute: prefix references, use theme colours, drop fonts, cut decimals."""
    if name == "href":
        return f"#{prefix}{value.removeprefix('#')}"
    value = value.replace("url(#", f"url(#{prefix}")
    for sentinel, variable in _VARIABLES.items():
        value = value.replace(sentinel, f"var({variable})")
    value = re.sub(r"\s*font-family:[^;]*;?", "", value)
    return re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found.group()):.2f}", value)


def thin(x: Numbers, y: Numbers, limit: int = MAX_POINTS) -> tuple[Numbers, Numbers]:
    """Reduce the line through `x` (rising) and `y` to at most `limit` points that look the same.

    The lowest and the highest point of each bucket of x are kept, and the first and the last point.
    Unlike random sampling, this loses no spike. One value per bucket that is not finite is kept
    too, as a gap.
    """
    if len(x) <= limit:
        return x, y
    buckets = (limit - 2) // (2 if np.isfinite(y).all() else 3)
    edges = np.searchsorted(x, np.linspace(x[0], x[-1], buckets + 1)[1:-1])
    kept = {0, len(x) - 1}
    for some in np.split(np.arange(len(x)), edges):
        finite = some[np.isfinite(y[some])]
        if len(finite):
            kept |= {int(finite[np.argmin(y[finite])]), int(finite[np.argmax(y[finite])])}
        if len(finite) < len(some):
            kept.add(int(some[~np.isfinite(y[some])][0]))
    at = np.array(sorted(kept))
    return x[at], y[at]


def compute_trailing_mean(y: Numbers, over: int) -> Numbers:
    """Compute the mean of each value and the `over` - 1 values before it (fewer at the start)."""
    return np.array([y[max(0, i - over + 1) : i + 1].mean() for i in range(len(y))])


def find_superseded(steps: NDArray[np.int64], attempts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the points that a later attempt repeated from an earlier or equal step."""
    thrown = np.zeros(len(steps), dtype=np.bool_)
    for attempt in np.unique(attempts):
        start = steps[attempts == attempt].min()
        thrown |= (attempts < attempt) & (steps >= start)
    return thrown


@dataclass(frozen=True)
class BarPart:
    """One kind of segment in stacked bars: its name in the legend, theme colour and hatch."""

    name: str
    colour: str
    hatched: bool = False

    def fill(self) -> dict[str, Any]:
        """Return matplotlib's arguments to fill a patch of this part."""
        if self.hatched:
            return {"facecolor": PAPER, "edgecolor": self.colour, "hatch": "/////"}
        return {"facecolor": self.colour, "linewidth": 0}


@dataclass(frozen=True)
class BarRow:
    """One horizontal bar: a length for each part, and a note at the right end."""

    name: str
    lengths: tuple[float, ...]
    note: str


def plot_rows(ax: Axes, rows: Sequence[BarRow], parts: Sequence[BarPart], x_label: str) -> Axes:
    """Plot stacked horizontal bars from top to bottom, with the name of each above its bar."""
    left = np.zeros(len(rows))
    for index, part in enumerate(parts):
        lengths = np.array([row.lengths[index] for row in rows], dtype=np.float64)
        some = np.flatnonzero(lengths)  # a hatched bar of length 0 would show its outline
        ax.barh(some, lengths[some], 0.36, left=left[some], **part.fill())
        left += lengths
    for y, row in enumerate(rows):
        right = ax.get_yaxis_transform()
        ax.text(0, y - 0.27, _cut_label(row.name, 34), va="bottom", transform=right)
        ax.text(
            1,
            y - 0.27,
            escape_invisible(row.note),
            va="bottom",
            ha="right",
            color=MUTED,
            transform=right,
        )
    _arrange_rows(ax, len(rows))
    ax.xaxis.set_major_formatter(EngFormatter(sep=" "))
    ax.set(xlabel=x_label, xlim=(0, left.max() or 1))
    if len(parts) > 1:
        _draw_legend_above(ax, [Patch(label=part.name, **part.fill()) for part in parts])
    return ax


@dataclass(frozen=True)
class BeforeAfter:
    """A named value measured before and after."""

    name: str
    before: float
    after: float


def plot_pairs(
    ax: Axes,
    pairs: Sequence[BeforeAfter],
    x_label: str,
    names: tuple[str, str] = ("before", "after"),
) -> Axes:
    """Plot two dots with their values in each row: open for before, filled for after.

    Rows are sorted by the change, with the largest decrease first.
    """
    ordered = sorted(pairs, key=lambda pair: pair.after - pair.before)
    y = np.arange(len(ordered))
    before = np.array([pair.before for pair in ordered])
    after = np.array([pair.after for pair in ordered])
    ax.hlines(y, np.minimum(before, after), np.maximum(before, after), color=MUTED, linewidth=1.5)
    open_dot: dict[str, Any] = {
        "markerfacecolor": PAPER,
        "markeredgecolor": C2,
        "markeredgewidth": 2,
    }
    dots = [
        *ax.plot(before, y, "o", markersize=9, label=names[0], **open_dot),
        *ax.plot(after, y, "o", markersize=9, color=C1, label=names[1]),
    ]
    for row, pair in enumerate(ordered):
        ax.text(
            0,
            row - 0.25,
            _cut_label(pair.name, 40),
            va="bottom",
            transform=ax.get_yaxis_transform(),
        )
        for value, is_left in (
            (pair.before, pair.before < pair.after),
            (pair.after, pair.after <= pair.before),
        ):
            ax.annotate(
                f"{value:.3g}",
                (value, row),
                (-9 if is_left else 9, 0),
                textcoords="offset points",
                ha="right" if is_left else "left",
                va="center",
                color=MUTED,
                fontsize=11,
            )
    _arrange_rows(ax, len(ordered))
    ax.margins(x=0.18)
    ax.set_xlabel(x_label)
    _draw_legend_above(ax, dots)
    return ax


@dataclass(frozen=True)
class NoisyCurve:
    """A noisy series over a rising x, and the number of points in its trailing mean."""

    x: Numbers
    y: Numbers
    mean_over: int
    x_label: str
    y_label: str


def plot_curve(ax: Axes, curve: NoisyCurve) -> Axes:
    """Plot every value as a faint line, and the mean of the last `mean_over` as a bold one."""
    ax.plot(*thin(curve.x, curve.y), color=C1, alpha=0.5, linewidth=1, label="each step")
    mean = compute_trailing_mean(curve.y, curve.mean_over)
    ax.plot(*thin(curve.x, mean), color=C1, linewidth=2.2, label=f"mean of {curve.mean_over}")
    ax.xaxis.set_major_formatter(EngFormatter(sep=" "))
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.margins(x=0.02)
    ax.set(xlabel=curve.x_label, ylabel=curve.y_label)
    return ax


@dataclass(frozen=True)
class Interruptions:
    """Events along a training curve, in the curve's units.

    `held_out` and each item of `thrown_away` (the steps of a dead attempt) are points (x, y).
    `restarts` are the x at which an attempt died, numbered from 1 in the drawing.
    """

    held_out: tuple[Numbers, Numbers]
    thrown_away: Sequence[tuple[Numbers, Numbers]] = ()
    restarts: Sequence[float] = ()


def plot_interrupted_curve(ax: Axes, curve: NoisyCurve, interruptions: Interruptions) -> Axes:
    """Plot a training curve, its held-out points, dotted dead attempts and numbered restarts."""
    plot_curve(ax, curve)
    held_out = interruptions.held_out
    ax.plot(*thin(*held_out), "D--", color=C3, linewidth=1, markersize=5, label="held-out")
    for x, y in interruptions.thrown_away:
        ax.plot(*thin(x, y), ":", color=C2, linewidth=2.5, label="thrown away")
    for index, died in enumerate(interruptions.restarts, 1):
        ax.axvline(died, color=C2, linewidth=1, linestyle=(0, (4, 3)))
        ax.annotate(
            str(index),
            (died, 1),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="center",
            fontsize=10,
            bbox={"boxstyle": "circle,pad=0.25", "facecolor": PAPER, "edgecolor": C2},
        )
    mean = compute_trailing_mean(curve.y, curve.mean_over)
    # The labels extend over half of the drawing, so they are above everything in that half.
    middle = (curve.x[0] + curve.x[-1]) / 2
    late = [curve.y[curve.x >= middle], held_out[1][held_out[0] >= middle], mean[-1:]]
    top = float(np.nanmax(np.concatenate(late)))
    ends = ((f"━ mean of {curve.mean_over} steps", mean[-1]), ("◆ held-out", held_out[1][-1]))
    for place, (name, value) in enumerate(ends):
        ax.annotate(
            f"{name} {value:.2f}",
            (curve.x[-1], top),
            (0, 14 + 16 * place),
            textcoords="offset points",
            ha="right",
            fontsize=11,
        )
    return ax


@dataclass(frozen=True)
class Mark:
    """An event at `x`, which undid the steps from `since` up to `x` if `since` is set."""

    x: float
    name: str
    since: float | None = None


def plot_marks(ax: Axes, marks: Sequence[Mark]) -> None:
    """Plot each mark as a vertical line with its name, over a band of the undone steps."""
    for mark in marks:
        colour = C2 if mark.since is None else C4
        if mark.since is not None:
            ax.axvspan(mark.since, mark.x, color=C4, alpha=0.22, linewidth=0)
        ax.axvline(mark.x, color=colour, linewidth=1.2, linestyle=(0, (4, 3)))
        ax.annotate(
            escape_invisible(mark.name),
            (mark.x, 1),
            (-2, -3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="top",
            fontsize=10,
            color=MUTED,
        )


def _cut_label(text: str, limit: int) -> str:
    """Shorten a label, so that it does not overlap its neighbour; tables show the full text."""
    text = escape_invisible(text).replace("\n", " ")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _arrange_rows(ax: Axes, rows: int) -> None:
    ax.set_ylim(rows - 0.6, -0.9)
    ax.yaxis.set_visible(False)
    ax.grid(visible=False)  # grid lines would cross the names
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(5))


def _draw_legend_above(ax: Axes, handles: Sequence[Artist]) -> None:
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(handles),
        borderaxespad=0,
        borderpad=0.2,
        handlelength=1.2,
        columnspacing=1.4,
    )
