"""Plots as data: a page says which lines, bars and bands to draw, and `plot_drawing` draws them.

A `Plot` has two axes and marks on them. `Bars`, `Pairs` and `Intervals` have one row for each name,
and `Histogram` has bins. Colours are the theme's names (`page_rendering.LIGHT`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]
# What a template needs of one chart: its `plot`, the `columns` and `rows` of its numbers, and the
# values of its wording.
ChartFacts = dict[str, Any]
Cell = str | int | float | None
Row = Sequence[Cell]
Colour = Literal["c1", "c2", "c3", "c4", "ink", "muted", "grid", "paper"]
SERIES: tuple[Colour, ...] = ("c1", "c2", "c3", "c4")  # more would be hard to tell apart
WIDTH = 420  # CSS pixels: a phone scales it down a little, a wide page up by a third


@dataclass(frozen=True)
class Axis:
    """One axis: its label with the unit, the format of its numbers, and its limits."""

    label: str
    form: Literal["plain", "short", "percent", "power"] = "plain"  # power: 1e+21
    log: bool = False
    low: float | None = None
    high: float | None = None
    whole: bool = False  # ticks at integers only
    names: tuple[str, ...] = ()  # written at 0, 1, 2, … instead of numbers


@dataclass(frozen=True)
class Line:
    """A series. `style` is matplotlib's: `-`, `--`, `:`, a marker (`o`, `D`, `.`), or both."""

    x: ArrayLike
    y: ArrayLike
    name: str = ""  # label in the legend; an empty name is left out
    colour: Colour = "c1"
    style: str = "-"
    width: float = 1.8
    size: float = 5.0  # size of the markers in points
    opacity: float = 1.0
    hollow: bool = False  # markers are filled with paper
    error: Sequence[float] | None = None  # half lengths of error bars
    area: ArrayLike | None = None  # areas of the markers, where these differ
    on_top: bool = False


@dataclass(frozen=True)
class Band:
    """An interval around a line."""

    x: ArrayLike
    low: ArrayLike
    high: ArrayLike
    colour: Colour = "c1"


@dataclass(frozen=True)
class Rule:
    """A line across the whole drawing at `at` of the axis `side`."""

    at: float
    side: Literal["x", "y"] = "y"
    name: str = ""
    colour: Colour = "muted"
    style: Literal["-", "--", ":"] = "--"
    width: float = 1.0


@dataclass(frozen=True)
class Span:
    """A shaded range of x."""

    start: float
    end: float
    name: str = ""
    colour: Colour = "muted"


@dataclass(frozen=True)
class Note:
    """Small text at a point, `dx` and `dy` CSS pixels away from it."""

    x: float
    y: float
    text: str
    dx: float = 0.0
    dy: float = 0.0
    align: Literal["left", "center", "right"] = "left"


@dataclass(frozen=True)
class Event:
    """An event at `x`, which undid the steps from `since` up to `x` if `since` is set.

    Its name is written along the line, or in a circle on top of it.
    """

    x: float
    name: str
    since: float | None = None
    circled: bool = False


@dataclass(frozen=True)
class Heat:
    """Cells whose strength of colour is a value from 0 to 1; NaN leaves a gap."""

    edges: Numbers  # [C + 1] of the columns
    rows: Sequence[float]  # [R] middles of rows of height 1
    strength: Numbers  # [R, C]


@dataclass(frozen=True)
class Contours:
    """Lines of equal value [Y, X], with the value written on each."""

    x: Numbers
    y: Numbers
    value: Numbers
    levels: Numbers


@dataclass(frozen=True)
class Columns:
    """Stacked vertical bars, one for each index from 0."""

    heights: Sequence[Sequence[float]]  # heights by part, from the bottom up
    parts: "Sequence[BarPart]"


Mark = Line | Band | Rule | Span | Note | Event | Heat | Contours | Columns


@dataclass(frozen=True)
class Plot:
    """Marks on two axes. Marks with names are in a legend above the drawing."""

    marks: Sequence[Mark]
    x: Axis
    y: Axis
    height: int = 240  # CSS pixels


@dataclass(frozen=True)
class BarPart:
    """One kind of segment in stacked bars."""

    name: str
    colour: Colour = "c1"
    hatched: bool = False


@dataclass(frozen=True)
class BarRow:
    """One horizontal bar: a length for each part, and a note at the right end."""

    name: str
    lengths: Sequence[float]
    note: str = ""


@dataclass(frozen=True)
class Bars:
    """Stacked horizontal bars from top to bottom, each below its name."""

    rows: Sequence[BarRow]
    x: Axis
    parts: Sequence[BarPart] = (BarPart("all"),)


@dataclass(frozen=True)
class BeforeAfter:
    """A named value measured before and after."""

    name: str
    before: float
    after: float


@dataclass(frozen=True)
class Pairs:
    """Two dots with their values in each row, the row with the largest decrease first."""

    pairs: Sequence[BeforeAfter]
    x: Axis
    names: tuple[str, str] = ("before", "after")


@dataclass(frozen=True)
class IntervalRow:
    """A named value with its interval, and another value to compare with."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    other: float | None = None
    faint: bool = False


@dataclass(frozen=True)
class Intervals:
    """A dot and its interval in each row, from top to bottom; circles are the other values."""

    rows: Sequence[IntervalRow]
    x: Axis
    names: tuple[str, str] = ("", "")  # labels of the values and of the other values
    zero: bool = False  # with a line at zero


Bin = tuple[tuple[float, float | None], int]  # lower bound, upper bound (None: open), count


@dataclass(frozen=True)
class Histogram:
    """Counts by bin as bars, and each of `bounds` as a line.

    If values exceed 2, the axis is logarithmic (linear below 1); otherwise it is linear.
    """

    bins: Sequence[Bin]
    bounds: Sequence[float] = ()
    counted: str = "documents"


Drawable = Plot | Bars | Pairs | Intervals | Histogram


def compute_trailing_mean(y: Numbers, over: int) -> Numbers:
    """Compute the mean of each value and the `over` - 1 values before it (fewer at the start)."""
    return np.array([y[max(0, i - over + 1) : i + 1].mean() for i in range(len(y))])


def choose_mean_over(points: int) -> int:
    """Return the number of points to smooth over: a fortieth of all, but at least four."""
    return max(1, min(points, max(4, points // 40)))


def smooth(x: ArrayLike, y: ArrayLike, over: int) -> tuple[Line, Line]:
    """Return every value as a faint line, and the mean of the last `over` as a bold one."""
    mean = compute_trailing_mean(np.asarray(y, np.float64), over)
    return Line(x, y, width=1, opacity=0.5), Line(x, mean, width=2.2)


def find_superseded(steps: NDArray[np.int64], attempts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the points that a later attempt repeated from an earlier or equal step."""
    thrown = np.zeros(len(steps), dtype=np.bool_)
    for attempt in np.unique(attempts):
        start = steps[attempts == attempt].min()
        thrown |= (attempts < attempt) & (steps >= start)
    return thrown


def choose_evenly(count: int, most: int = 50) -> list[int]:
    """Return up to `most` of `count` indices, evenly spaced, with the first and the last."""
    return [int(i) for i in np.unique(np.linspace(0, count - 1, min(most, count)).astype(int))]
