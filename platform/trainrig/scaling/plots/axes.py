"""Logarithmic axes with readable labels."""

from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from trainrig.report import format_short

Side = Literal["x", "y"]
WIDE = 1.3  # range in powers of ten from which labels at powers of ten suffice
MOST_LABELS = 6


def log_axis(ax: Axes, side: Side, label: str, *, powers: bool = False) -> None:
    """Make one axis logarithmic. Call it after the data are drawn.

    Labels are short (`52 M`), or with `powers` scientific (`1e+21`) for numbers without an everyday
    unit.
    """
    axis: Axis = ax.xaxis if side == "x" else ax.yaxis
    if side == "x":
        ax.set(xscale="log", xlabel=label)
        low, high = ax.get_xlim()
    else:
        ax.set(yscale="log", ylabel=label)
        low, high = ax.get_ylim()
    decades = float(np.log10(high / low))
    narrow = decades < WIDE
    subs = (1.0, 2.0, 5.0) if decades > 0.5 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    axis.set_major_locator(LogLocator(subs=subs if narrow else (1.0,), numticks=MOST_LABELS))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    written = _format_power if powers else format_short
    axis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))


def _format_power(value: float) -> str:
    digits, _, exponent = f"{value:.0e}".partition("e")
    return f"{digits}e{int(exponent)}"
