"""Charts that follow the page's theme: matplotlib drawings as inline SVG, text kept as text.

A plot takes data and an Axes and draws in the named colours below, which are sentinels: colours
nobody would choose. `draw` turns each into the CSS variable of its name (`report.LIGHT`,
`report.DARK`), so one drawing serves light, dark and paper. The same plot gives the same bytes.
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

WIDTH = 420  # CSS pixels: a phone shrinks it little, and a wide page enlarges it by a third
MAX_POINTS = 1_000  # on one line: about 20 KB of SVG

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
    "text.parse_math": False,  # a label with two dollar signs is a label
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is measured alike everywhere
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
    """The SVG of what `plot` draws on an Axes, `WIDTH` by `height` CSS pixels before scaling."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        # A script that DejaVu lacks is measured wrongly, but the reader's browser has its letters.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        matplotlib.rcdefaults()  # not the user's matplotlibrc: it would change the bytes
        matplotlib.rcParams.update(_STYLE)
        # An SVG of matplotlib has 72 units an inch; we make one unit one CSS pixel.
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        plot(figure.add_subplot())
        drawing = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(drawing, format="svg", transparent=True, metadata=nothing)
    return _theme_svg(drawing.getvalue())


def _theme_svg(drawing: str) -> str:
    """matplotlib's SVG as one element for an HTML page: themed, its ids unlike any other's."""
    root = ElementTree.fromstring(drawing)
    prefix = f"f{hashlib.sha256(drawing.encode()).hexdigest()[:8]}-"
    referred = set(re.findall(r'(?:url\(|href=")#([^)"]+)', drawing))
    for parent in list(root.iter()):
        for child in [c for c in parent if c.tag.endswith(("}style", "}metadata"))]:
            parent.remove(child)  # a <style> would hold for the whole page; report.css has it
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
    """One attribute: references prefixed, colours themed, fonts left to CSS, decimals cut."""
    if name == "href":
        return f"#{prefix}{value.removeprefix('#')}"
    value = value.replace("url(#", f"url(#{prefix}")
    for sentinel, variable in _VARIABLES.items():
        value = value.replace(sentinel, f"var({variable})")
    value = re.sub(r"\s*font-family:[^;]*;?", "", value)
    return re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found.group()):.2f}", value)


def thin(x: Numbers, y: Numbers, limit: int = MAX_POINTS) -> tuple[Numbers, Numbers]:
    """At most `limit` points of the line through `x` (rising), `y` that look like all of them.

    The lowest and the highest of each bucket of x stay, with the first and the last point: no
    spike is lost, as random sampling would. A value that is not finite stays too, as a gap.
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
    """The mean of each value and the `over` - 1 before it (fewer at the start)."""
    return np.array([y[max(0, i - over + 1) : i + 1].mean() for i in range(len(y))])


def find_superseded(steps: NDArray[np.int64], attempts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which points a later attempt threw away by starting again at or before their step."""
    thrown = np.zeros(len(steps), dtype=np.bool_)
    for attempt in np.unique(attempts):
        start = steps[attempts == attempt].min()
        thrown |= (attempts < attempt) & (steps >= start)
    return thrown


@dataclass(frozen=True)
class BarPart:
    """One kind of length in a bar: its name in the legend, a colour of the theme, a hatch."""

    name: str
    colour: str
    hatched: bool = False

    def fill(self) -> dict[str, Any]:
        """How matplotlib is to fill a patch of this part."""
        if self.hatched:
            return {"facecolor": PAPER, "edgecolor": self.colour, "hatch": "/////"}
        return {"facecolor": self.colour, "linewidth": 0}


@dataclass(frozen=True)
class BarRow:
    """One horizontal bar: a length for each part, and what to write at the right end."""

    name: str
    lengths: tuple[float, ...]
    note: str


def plot_rows(ax: Axes, rows: Sequence[BarRow], parts: Sequence[BarPart], x_label: str) -> Axes:
    """Horizontal bars from top to bottom, each under its own name, their parts laid end to end."""
    left = np.zeros(len(rows))
    for index, part in enumerate(parts):
        lengths = np.array([row.lengths[index] for row in rows], dtype=np.float64)
        some = np.flatnonzero(lengths)  # a hatched nothing would leave its outline
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
    _as_rows(ax, len(rows))
    ax.xaxis.set_major_formatter(EngFormatter(sep=" "))
    ax.set(xlabel=x_label, xlim=(0, left.max() or 1))
    if len(parts) > 1:
        _draw_legend_above(ax, [Patch(label=part.name, **part.fill()) for part in parts])
    return ax


@dataclass(frozen=True)
class BeforeAfter:
    """One thing measured before and after."""

    name: str
    before: float
    after: float


def plot_pairs(
    ax: Axes,
    pairs: Sequence[BeforeAfter],
    x_label: str,
    names: tuple[str, str] = ("before", "after"),
) -> Axes:
    """Two dots a row, open before and filled after, greatest fall first; values written beside."""
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
    _as_rows(ax, len(ordered))
    ax.margins(x=0.18)
    ax.set_xlabel(x_label)
    _draw_legend_above(ax, dots)
    return ax


@dataclass(frozen=True)
class NoisyCurve:
    """A noisy series over a rising x, and how many of its points each mean takes in."""

    x: Numbers
    y: Numbers
    mean_over: int
    x_label: str
    y_label: str


def plot_curve(ax: Axes, curve: NoisyCurve) -> Axes:
    """Every value, faint, under the mean of the last `mean_over`, bold."""
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
    """What happened along a curve, in its units.

    `held_out` and each of `thrown_away` (the steps of a dead attempt) are points (x, y);
    `restarts` are the x at which an attempt died, numbered from 1 in the drawing.
    """

    held_out: tuple[Numbers, Numbers]
    thrown_away: Sequence[tuple[Numbers, Numbers]] = ()
    restarts: Sequence[float] = ()


def plot_interrupted_curve(ax: Axes, curve: NoisyCurve, interruptions: Interruptions) -> Axes:
    """A training curve, its held-out points, its dead attempts dotted, its restarts numbered."""
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
    # Above all that is drawn below them: they reach back over half of the drawing.
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
    """Something that happened at `x`; what lies between it and `since` was undone by it."""

    x: float
    name: str
    since: float | None = None


def plot_marks(ax: Axes, marks: Sequence[Mark]) -> None:
    """Each mark as a line with its name along it, over the band of what it undid."""
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
    """A label short enough not to run into its neighbour; tables hold the whole."""
    text = escape_invisible(text).replace("\n", " ")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _as_rows(ax: Axes, rows: int) -> None:
    ax.set_ylim(rows - 0.6, -0.9)
    ax.yaxis.set_visible(False)
    ax.grid(visible=False)  # values are written, and lines would run through the names
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
