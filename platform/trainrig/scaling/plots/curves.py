"""Plots of measured losses: over compute during training, and over sizes at equal compute.

Losses are in nats per token, compute in FLOPs by 6ND.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from trainrig.figures import C1, C2, C3, C4, INK, MUTED, Numbers, thin
from trainrig.scaling.plots.axes import log_axis

LOSS = "loss (nats per token)"
BUDGET_COLOURS = (C1, C2, C3, C4)
LEAST_APART = 0.05  # least distance between the names of two budgets, as a share of the height
ROOM_FOR_NAMES = 1.6  # factor beyond the largest size, to leave space for the names of budgets


@dataclass(frozen=True)
class LossCurve:
    """Loss of one training run as its compute grows."""

    flops: Numbers
    loss: Numbers


def plot_loss_curves(
    ax: Axes, curves: Sequence[LossCurve], envelope: tuple[Numbers, Numbers] | None = None
) -> Axes:
    """Plot each run's loss over its compute, and in bold the least loss at each compute."""
    for curve in curves:
        marker = "." if len(curve.flops) == 1 else None
        line = thin(curve.flops, curve.loss, 100)
        ax.plot(*line, color=C1, alpha=0.5, linewidth=1, marker=marker)
    if envelope is not None:
        ax.plot(*thin(*envelope), color=C2, linewidth=2.4, label="lowest at each compute")
        ax.legend()
    log_axis(ax, "x", "compute (FLOPs, 6ND)", powers=True)
    log_axis(ax, "y", LOSS)
    return ax


@dataclass(frozen=True)
class Parabola:
    """Runs of one budget, and the parabola fitted to them if its lowest point is inside."""

    flops: float
    parameters: Numbers  # sizes of its runs
    loss: Numbers
    lowest: tuple[float, float] | None = None  # N* and the loss there
    curvature: float = 0.0  # half the second derivative of the loss by log N


def plot_isoflops(ax: Axes, budgets: Sequence[Parabola]) -> Axes:
    """Plot loss over size in one colour per budget, with each parabola and its lowest point."""
    for number, budget in enumerate(sorted(budgets, key=lambda budget: budget.flops)):
        colour = BUDGET_COLOURS[number % len(BUDGET_COLOURS)]
        order = np.argsort(budget.parameters, kind="stable")
        sizes = budget.parameters[order]
        losses = budget.loss[order]
        ax.plot(sizes, losses, "o", color=colour, markersize=4)
        if budget.lowest is not None:
            best, least = budget.lowest
            along = np.geomspace(sizes[0], sizes[-1], 60)
            bowl = least + budget.curvature * np.log(along / best) ** 2
            ax.plot(along, bowl, color=colour, linewidth=1.6)
            ax.plot([best], [least], "D", color=INK, markersize=6, zorder=3)
        else:
            ax.plot(sizes, losses, ":", color=colour, linewidth=1.2)
    _write_names(ax, budgets)
    ends = [float(budget.parameters.max()) for budget in budgets]
    starts = [float(budget.parameters.min()) for budget in budgets]
    ax.set_xlim(min(starts) / 1.2, max(ends) * ROOM_FOR_NAMES)
    log_axis(ax, "x", "parameters")
    log_axis(ax, "y", LOSS)
    return ax


def _write_names(ax: Axes, budgets: Sequence[Parabola]) -> None:
    """Write each budget beside its largest size, unless another name is near."""
    ends = [int(np.argmax(budget.parameters)) for budget in budgets]
    heights = np.log([b.loss[end] for b, end in zip(budgets, ends, strict=True)])
    every = np.log(np.concatenate([budget.loss for budget in budgets]))
    apart = LEAST_APART * float(np.ptp(every))
    last = np.inf
    for at in np.argsort(-heights, kind="stable"):
        if last - heights[at] < apart:
            continue
        last = heights[at]
        budget = budgets[at]
        end = ends[at]
        ax.annotate(
            f"{budget.flops:.0e}".replace("e+", "e"),
            (budget.parameters[end], budget.loss[end]),
            (6, 0),
            textcoords="offset points",
            va="center",
            color=MUTED,
            fontsize=10,
        )
