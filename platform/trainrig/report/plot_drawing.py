"""Drawing of plots with matplotlib, as inline SVG that follows the page's theme.

Marks are drawn in rare placeholder colours, which are then replaced by the CSS variables of the
theme, so that one drawing serves the light theme, the dark theme and print. Text stays text in the
SVG. The same plot gives the same bytes.
"""

import hashlib
import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis as DrawnAxis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    PercentFormatter,
)

from trainrig.report import plots
from trainrig.report.histogram import draw_histogram
from trainrig.report.number_formats import escape_invisible, format_short

MAX_POINTS = 1_000  # maximum number of points on one line, which take about 20 KB of SVG
ROW = 36  # CSS pixels of a row
LONGEST_NAME = 34  # characters of a row's name; tables show the full text
LONGEST_LEGEND = 30
LONGEST_LABEL = 60
FAINT = 0.22  # opacity of bands
DASHES = (0, (4, 3))

COLOURS = {
    name: f"#0a0b{number:02d}"
    for number, name in enumerate(("ink", "muted", "grid", "paper", "c1", "c2", "c3", "c4"), 1)
}
INK, MUTED, GRID, PAPER = (COLOURS[name] for name in ("ink", "muted", "grid", "paper"))

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


def draw(plot: plots.Drawable) -> str:
    """Return `plot` as SVG markup, `plots.WIDTH` CSS pixels wide before it is scaled."""
    if isinstance(plot, plots.Histogram):
        return draw_histogram(plot)
    with matplotlib.rc_context(), warnings.catch_warnings():
        # Letters that DejaVu lacks get a wrong size here, but the reader's browser shows them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        matplotlib.rcdefaults()  # the user's matplotlibrc would change the bytes
        matplotlib.rcParams.update(_STYLE)
        # matplotlib's SVG has 72 units per inch. Here one unit is one CSS pixel.
        size = (plots.WIDTH / 72, choose_height(plot) / 72)
        figure = Figure(figsize=size, layout="constrained")
        draw_on(figure.add_subplot(), plot)
        drawing = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(drawing, format="svg", transparent=True, metadata=nothing)
    return _theme_svg(drawing.getvalue())


def choose_height(plot: plots.Plot | plots.Bars | plots.Pairs | plots.Intervals) -> int:
    """Return the height of `plot` in CSS pixels."""
    if isinstance(plot, plots.Plot):
        return plot.height
    if isinstance(plot, plots.Bars):
        return 60 + ROW * len(plot.rows) + 26 * (len(plot.parts) > 1)
    rows = plot.pairs if isinstance(plot, plots.Pairs) else plot.rows
    return 90 + (ROW + 4) * len(rows)


def draw_on(ax: Axes, plot: plots.Plot | plots.Bars | plots.Pairs | plots.Intervals) -> None:
    """Draw `plot` on the Axes `ax`, with its axes and its legend."""
    if isinstance(plot, plots.Plot):
        for mark in plot.marks:
            _DRAW[type(mark)](ax, mark)
        lines = [mark for mark in plot.marks if isinstance(mark, plots.Line)]
        if lines and not any(_shows_markers(line) for line in lines):
            ax.margins(x=0)  # the axis ends with the run
        _set_axis(ax, "x", plot.x)
        _set_axis(ax, "y", plot.y)
        handles, _ = ax.get_legend_handles_labels()
        _draw_legend(ax, handles)
        return
    if isinstance(plot, plots.Bars):
        _draw_bars(ax, plot)
    elif isinstance(plot, plots.Pairs):
        _draw_pairs(ax, plot)
    else:
        _draw_intervals(ax, plot)
    _set_axis(ax, "x", plot.x)


def thin(
    x: plots.Numbers, y: plots.Numbers, limit: int = MAX_POINTS
) -> tuple[plots.Numbers, plots.Numbers]:
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


def _shows_markers(line: plots.Line) -> bool:
    """Return whether `line` has markers, which an edge of the plot would cut in two."""
    return line.area is not None or line.style not in ("-", "--", ":")


def _draw_line(ax: Axes, line: plots.Line) -> None:
    x, y = np.asarray(line.x, np.float64), np.asarray(line.y, np.float64)
    colour = COLOURS[line.colour]
    style: dict[str, Any] = {"color": colour, "linewidth": line.width, "alpha": line.opacity}
    style |= {"markersize": line.size, "label": _name(line.name), "zorder": 3 if line.on_top else 2}
    if line.hollow:
        style |= {"markerfacecolor": PAPER, "markeredgecolor": colour, "markeredgewidth": 1.8}
    if line.area is not None:
        ax.scatter(x, y, s=np.asarray(line.area), color=colour, label=_name(line.name))
    elif line.error is not None:
        ax.errorbar(x, y, yerr=line.error, fmt=line.style, capsize=2, elinewidth=1, **style)
    else:
        ax.plot(*(thin(x, y) if (np.diff(x) > 0).all() else (x, y)), line.style, **style)


def _draw_band(ax: Axes, band: plots.Band) -> None:
    low, high = np.asarray(band.low), np.asarray(band.high)
    ax.fill_between(band.x, low, high, color=COLOURS[band.colour], alpha=FAINT, linewidth=0)


def _draw_rule(ax: Axes, rule: plots.Rule) -> None:
    line = ax.axvline if rule.side == "x" else ax.axhline
    style: Any = DASHES if rule.style == "--" else rule.style
    colour = COLOURS[rule.colour]
    line(rule.at, color=colour, linewidth=rule.width, linestyle=style, label=_name(rule.name))


def _draw_span(ax: Axes, span: plots.Span) -> None:
    style: dict[str, Any] = {"color": COLOURS[span.colour], "alpha": 0.12, "linewidth": 0}
    ax.axvspan(span.start, span.end, label=_name(span.name), **style)


def _draw_note(ax: Axes, note: plots.Note) -> None:
    place: dict[str, Any] = {"textcoords": "offset points", "ha": note.align, "va": "center"}
    text = _cut_label(note.text, LONGEST_NAME)
    ax.annotate(text, (note.x, note.y), (note.dx, note.dy), color=MUTED, fontsize=10, **place)


def _draw_event(ax: Axes, event: plots.Event) -> None:
    colour = COLOURS["c2"] if event.since is None else COLOURS["c4"]
    if event.since is not None:
        ax.axvspan(event.since, event.x, color=COLOURS["c4"], alpha=FAINT, linewidth=0)
    ax.axvline(event.x, color=colour, linewidth=1.2, linestyle=DASHES)
    place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "fontsize": 10}
    if event.circled:
        box = {"boxstyle": "circle,pad=0.25", "facecolor": PAPER, "edgecolor": colour}
        ax.annotate(event.name, (event.x, 1), ha="center", va="center", bbox=box, **place)
        return
    place |= {"textcoords": "offset points", "rotation": 90, "ha": "right", "va": "top"}
    ax.annotate(_cut_label(event.name, LONGEST_NAME), (event.x, 1), (-2, -3), color=MUTED, **place)


def _draw_heat(ax: Axes, heat: plots.Heat) -> None:
    """Draw cells as bars of one colour, for both themes and colour-blind readers."""
    widths = np.diff(heat.edges)
    for row, strengths in zip(heat.rows, heat.strength, strict=True):
        for column in np.flatnonzero(np.isfinite(strengths)):
            ax.barh(
                row,
                widths[column],
                left=heat.edges[column],
                height=1.0,
                color=COLOURS["c1"],
                alpha=round(float(strengths[column]), 2),
                linewidth=0,
            )
    ax.set_xlim(heat.edges[0], heat.edges[-1])


def _draw_contours(ax: Axes, found: plots.Contours) -> None:
    # Labels are placed along the lines as drawn, so the scales are set first.
    ax.set(xscale="log", yscale="log")
    ax.set(xlim=(found.x[0], found.x[-1]), ylim=(found.y[0], found.y[-1]))
    style: dict[str, Any] = {"levels": found.levels, "colors": MUTED, "linewidths": 0.8}
    lines = ax.contour(found.x, found.y, found.value, **style)
    ax.clabel(lines, fmt="%.3g", fontsize=9)


def _draw_columns(ax: Axes, columns: plots.Columns) -> None:
    bottom = np.zeros(len(columns.heights[0]))
    for part, heights in zip(columns.parts, columns.heights, strict=True):
        label = _name(part.name)
        ax.bar(np.arange(len(heights)), heights, 0.7, bottom=bottom, label=label, **_fill(part))
        bottom = bottom + np.asarray(heights)
    ax.grid(visible=False, axis="x")


_DRAW: dict[type, Callable[[Axes, Any], None]] = {
    plots.Line: _draw_line,
    plots.Band: _draw_band,
    plots.Rule: _draw_rule,
    plots.Span: _draw_span,
    plots.Note: _draw_note,
    plots.Event: _draw_event,
    plots.Heat: _draw_heat,
    plots.Contours: _draw_contours,
    plots.Columns: _draw_columns,
}


def _set_axis(ax: Axes, side: str, axis: plots.Axis) -> None:
    """Set scale, limits, ticks and label of one axis, after the marks are drawn."""
    drawn: DrawnAxis = ax.xaxis if side == "x" else ax.yaxis
    drawn.set_label_text(_cut_label(axis.label, LONGEST_LABEL))
    if axis.log:
        _set_limits(ax, side, axis)
        _make_log(ax, side, axis.form == "power")
        return
    if axis.names:
        drawn.set_ticks(list(range(len(axis.names))), [_cut_label(name, 12) for name in axis.names])
        return
    drawn.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], integer=axis.whole))
    if axis.form == "short":
        drawn.set_major_formatter(FuncFormatter(lambda value, _: format_short(value)))
    elif axis.form == "percent":
        drawn.set_major_formatter(PercentFormatter(1.0))
    else:
        drawn.set_major_formatter("{x:,.10g}")
    _set_limits(ax, side, axis)


def _set_limits(ax: Axes, side: str, axis: plots.Axis) -> None:
    if axis.low is not None or axis.high is not None:
        (ax.set_xlim if side == "x" else ax.set_ylim)(axis.low, axis.high)


WIDE = 1.3  # range in powers of ten from which labels at powers of ten suffice
MOST_LABELS = 6


def _make_log(ax: Axes, side: str, powers: bool) -> None:
    """Make one axis logarithmic, with labels that are not TeX, which an SVG shows verbatim."""
    if not np.isfinite(ax.dataLim.minposx if side == "x" else ax.dataLim.minposy):
        return  # no data, or none above 0
    axis: DrawnAxis = ax.xaxis if side == "x" else ax.yaxis
    (ax.set_xscale if side == "x" else ax.set_yscale)("log")
    low, high = ax.get_xlim() if side == "x" else ax.get_ylim()
    decades = float(np.log10(high / low))
    subs: tuple[float, ...] = (1.0,)
    if decades < WIDE:
        subs = (1.0, 2.0, 5.0) if decades > 0.5 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    if decades < 0.25:
        subs = tuple(np.arange(1, 10, 0.2 if decades > 0.12 else 0.1))
    axis.set_major_locator(LogLocator(subs=subs, numticks=MOST_LABELS))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    written = _format_power if powers else format_short
    axis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))


def _format_power(value: float) -> str:
    digits, _, exponent = f"{value:.0e}".partition("e")
    return f"{digits}e{int(exponent)}"


def _fill(part: plots.BarPart) -> dict[str, Any]:
    """Return matplotlib's arguments to fill a patch of this part."""
    if part.hatched:
        return {"facecolor": PAPER, "edgecolor": COLOURS[part.colour], "hatch": "/////"}
    return {"facecolor": COLOURS[part.colour], "linewidth": 0}


def _draw_bars(ax: Axes, bars: plots.Bars) -> None:
    left = np.zeros(len(bars.rows))
    for index, part in enumerate(bars.parts):
        lengths = np.array([row.lengths[index] for row in bars.rows], dtype=np.float64)
        some = np.flatnonzero(lengths)  # a hatched bar of length 0 would show its outline
        ax.barh(some, lengths[some], 0.36, left=left[some], **_fill(part))
        left += lengths
    right: dict[str, Any] = {"va": "bottom", "transform": ax.get_yaxis_transform()}
    for y, row in enumerate(bars.rows):
        ax.text(1, y - 0.27, _cut_label(row.note, LONGEST_NAME), ha="right", color=MUTED, **right)
    _arrange_rows(ax, [row.name for row in bars.rows])
    ax.set_xlim(0, left.max() or 1)
    if len(bars.parts) > 1:
        _draw_legend(ax, [Patch(label=part.name, **_fill(part)) for part in bars.parts])


def _draw_pairs(ax: Axes, drawn: plots.Pairs) -> None:
    ordered = sorted(drawn.pairs, key=lambda pair: pair.after - pair.before)
    y = np.arange(len(ordered))
    before = np.array([pair.before for pair in ordered])
    after = np.array([pair.after for pair in ordered])
    ax.hlines(y, np.minimum(before, after), np.maximum(before, after), color=MUTED, linewidth=1.5)
    hollow = _hollow(9)
    dots = ax.plot(before, y, "o", label=drawn.names[0], **hollow)
    dots += ax.plot(after, y, "o", markersize=9, color=COLOURS["c1"], label=drawn.names[1])
    place: dict[str, Any] = {"textcoords": "offset points", "va": "center", "color": MUTED}
    for row, pair in enumerate(ordered):
        for value, is_left in (
            (pair.before, pair.before < pair.after),
            (pair.after, pair.after <= pair.before),
        ):
            side = ("right", -9) if is_left else ("left", 9)
            text = f"{value:.3g}"
            ax.annotate(text, (value, row), (side[1], 0), ha=side[0], fontsize=11, **place)
    _arrange_rows(ax, [pair.name for pair in ordered])
    ax.margins(x=0.18)
    _draw_legend(ax, dots)


def _draw_intervals(ax: Axes, drawn: plots.Intervals) -> None:
    if drawn.zero:
        ax.axvline(0, color=MUTED, linewidth=1)
    for y, row in enumerate(drawn.rows):
        colour = MUTED if row.faint else COLOURS["c1"]
        if row.low is not None and row.high is not None:
            ax.plot([row.low, row.high], [y, y], color=colour, linewidth=2)
        if row.other is not None:
            ax.plot([row.other], [y], "o", **_hollow(7))
        ax.plot([row.value], [y], "o", color=colour, markersize=7)
    _arrange_rows(ax, [row.name for row in drawn.rows])
    if any(row.other is not None for row in drawn.rows):
        value, other = drawn.names
        dot = Line2D([], [], marker="o", linestyle="", color=COLOURS["c1"], label=value)
        circle = Line2D([], [], marker="o", linestyle="", label=other, **_hollow(7))
        _draw_legend(ax, [dot, circle])


def _hollow(size: float) -> dict[str, Any]:
    """Return matplotlib's arguments for open circles."""
    edge = {"markeredgecolor": COLOURS["c2"], "markeredgewidth": 2}
    return {"markerfacecolor": PAPER, "markersize": size, **edge}


def _arrange_rows(ax: Axes, names: Sequence[str]) -> None:
    """Write a name above each row, from top to bottom."""
    for row, name in enumerate(names):
        text = _cut_label(name, LONGEST_NAME)
        ax.text(0, row - 0.27, text, va="bottom", transform=ax.get_yaxis_transform())
    ax.set_ylim(len(names) - 0.6, -0.9)
    ax.yaxis.set_visible(False)
    ax.grid(visible=False)  # grid lines would cross the names
    ax.spines["left"].set_visible(False)


def _cut_label(text: str, limit: int) -> str:
    """Shorten a label, so that it does not overlap its neighbour; tables show the full text."""
    text = escape_invisible(text).replace("\n", " ")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _name(text: str) -> str:
    """Return the label of a mark for the legend; matplotlib leaves out those with `_` in front."""
    return _cut_label(f"\u200b{text}" if text.startswith("_") else text, LONGEST_LEGEND) or "_"


def _draw_legend(ax: Axes, handles: Sequence[Artist]) -> None:
    """Draw the legend above the drawing, in as many columns as fit."""
    if not handles:
        return
    widest = max(len(str(handle.get_label())) for handle in handles)
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=min(len(handles), max(1, 350 // (40 + 7 * widest))),
        borderaxespad=0,
        borderpad=0.2,
        handlelength=1.4,
        columnspacing=1.4,
    )


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
    for colour, placeholder in COLOURS.items():
        value = value.replace(placeholder, f"var(--{colour})")
    value = re.sub(r"\s*font-family:[^;]*;?", "", value)
    return re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found.group()):.2f}", value)
