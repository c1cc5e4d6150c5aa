"""Plots of predicted over measured losses, and of the errors."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from trainrig.figures import C1, C2, GRID, MUTED, PAPER, Numbers
from trainrig.scaling.plots.axes import log_axis


@dataclass(frozen=True)
class Agreement:
    """Predicted and measured losses of runs, in nats per token."""

    predicted: Numbers
    actual: Numbers


def plot_agreement(
    ax: Axes,
    fitted: Agreement,
    held_out: Agreement | None = None,
    names: tuple[str, str] = ("fitted", "held out"),
) -> Axes:
    """Plot predicted over measured loss, with the diagonal; held-out runs are diamonds."""
    every = [fitted] if held_out is None else [fitted, held_out]
    values = np.concatenate([x for one in every for x in (one.predicted, one.actual)])
    ends = [float(values.min()), float(values.max())]
    ax.plot(ends, ends, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    ax.plot(fitted.actual, fitted.predicted, "o", color=C1, markersize=4, alpha=0.6, label=names[0])
    if held_out is not None:
        ax.plot(
            held_out.actual, held_out.predicted, "D", markerfacecolor=PAPER, markeredgecolor=C2,
            markeredgewidth=1.5, markersize=6, label=names[1],
        )  # fmt: skip
        ax.legend(loc="upper left")
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.yaxis.set_major_locator(MaxNLocator(6))
    ax.set(xlabel="measured loss (nats per token)", ylabel="predicted loss (nats per token)")
    return ax


@dataclass(frozen=True)
class Residuals:
    """Relative errors (predicted / measured - 1) of runs, and the sizes they are plotted over."""

    size: Numbers
    error: Numbers


def plot_residuals(
    ax: Axes, fitted: Residuals, unit: str, held_out: Residuals | None = None
) -> Axes:
    """Plot errors over parameters or tokens, where a trend shows what the form cannot express."""
    ax.axhline(0, color=GRID, linewidth=1.5)
    ax.plot(fitted.size, fitted.error, "o", color=C1, markersize=4, alpha=0.6, label="fitted")
    if held_out is not None and len(held_out.size):
        ax.plot(
            held_out.size, held_out.error, "D", markerfacecolor=PAPER, markeredgecolor=C2,
            markeredgewidth=1.5, markersize=6, label="held out",
        )  # fmt: skip
        ax.legend(loc="best")
    log_axis(ax, "x", unit)
    ax.yaxis.set_major_locator(MaxNLocator(6))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_ylabel("predicted above measured")
    return ax
