"""Plots of the optimum over compute, with intervals, and of the loss over sizes and tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from trainrig.figures import C1, C2, C3, C4, INK, MUTED, PAPER, Numbers
from trainrig.scaling.plots.axes import log_axis

BAND = 0.22  # opacity of the interval's band
LEVELS = 9  # number of contour lines


@dataclass(frozen=True)
class Band:
    """Quantity over x (compute or tokens), with the ends of its interval if there is one."""

    x: Numbers
    value: Numbers
    low: Numbers | None = None
    high: Numbers | None = None


@dataclass(frozen=True)
class OtherWay:
    """The same quantity by another approach, drawn as a line or as points."""

    name: str
    flops: Numbers
    value: Numbers
    points: bool = False


def plot_optimum(
    ax: Axes,
    band: Band,
    quantity: str,
    others: Sequence[OtherWay] = (),
    fitted: tuple[float, float] | None = None,
) -> Axes:
    """Plot N* or D* over compute, with its interval as a band.

    `fitted` has the least and greatest compute of the runs.
    """
    ax.plot(band.x, band.value, color=C1, linewidth=2.2, label="this law")
    if band.low is not None and band.high is not None:
        ax.fill_between(band.x, band.low, band.high, color=C1, alpha=BAND, linewidth=0)
    for other, colour in zip(others, (C2, C3, C4), strict=False):
        style = "o" if other.points else "--"
        ax.plot(
            other.flops, other.value, style, color=colour, linewidth=1.5, markersize=4,
            label=other.name,
        )  # fmt: skip
    if fitted is not None:
        ax.axvspan(*fitted, color=MUTED, alpha=0.12, linewidth=0, label="compute of the runs")
    ax.legend(loc="upper left")
    ax.set_xlim(band.x[0], band.x[-1])
    log_axis(ax, "x", "compute (FLOPs, 6ND)", powers=True)
    log_axis(ax, "y", quantity)
    return ax


@dataclass(frozen=True)
class Surface:
    """Loss [D, N] on a grid of tokens and parameters, in nats per token."""

    parameters: Numbers  # [N]
    tokens: Numbers  # [D]
    loss: Numbers  # [D, N]


def plot_contours(
    ax: Axes,
    surface: Surface,
    frontier: tuple[Numbers, Numbers],
    runs: tuple[Numbers, Numbers] | None = None,
    chosen: tuple[float, float] | None = None,
) -> Axes:
    """Plot lines of equal loss over parameters and tokens, the runs, and the optimum by compute.

    `frontier`, `runs` and `chosen` are (parameters, tokens).
    """
    low = float(surface.loss.min())
    high = float(surface.loss.max())
    least = low - 0.05 * (high - low)
    levels = least + np.geomspace(low - least, high - least, LEVELS + 2)[1:-1]
    lines = ax.contour(
        surface.parameters, surface.tokens, surface.loss, levels=levels, colors=MUTED,
        linewidths=0.8,
    )  # fmt: skip
    if runs is not None:
        ax.plot(*runs, "o", color=C1, markersize=3.5, label="runs")
    ax.plot(*frontier, color=C2, linewidth=2.4, label="best for its compute")
    if chosen is not None:
        ax.plot(
            [chosen[0]], [chosen[1]], "D", color=PAPER, markeredgecolor=INK, markeredgewidth=2,
            markersize=8, label="this plan", zorder=3,
        )  # fmt: skip
    ax.set_xlim(surface.parameters[0], surface.parameters[-1])
    ax.set_ylim(surface.tokens[0], surface.tokens[-1])
    log_axis(ax, "x", "parameters")
    log_axis(ax, "y", "tokens")
    ax.clabel(lines, fmt="%.3g", fontsize=9)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0, borderpad=0.2)
    return ax
