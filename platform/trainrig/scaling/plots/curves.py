"""Losses as they were measured: along training, and across sizes at one compute.

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
LEAST_APART = 0.05  # of the height, between the names of two budgets
ROOM_FOR_NAMES = 1.6  # times the largest size: the budgets are written there


@dataclass(frozen=True)
class LossCurve:
    """The loss of one training run as its compute grew."""

    flops: Numbers
    loss: Numbers


def plot_loss_curves(
    ax: Axes, curves: Sequence[LossCurve], envelope: tuple[Numbers, Numbers] | None = None
) -> Axes:
    """Every run's loss against its compute, faint, and the least of all at each compute, bold."""
    for curve in curves:
        marker = "." if len(curve.flops) == 1 else None
        line = thin(curve.flops, curve.loss, 100)
        ax.plot(*line, color=C1, alpha=0.5, linewidth=1, marker=marker)
    if envelope is not None:
        ax.plot(*thin(*envelope), color=C2, linewidth=2.4, label="least at each compute")
        ax.legend()
    log_axis(ax, "x", "compute (FLOPs, 6ND)", powers=True)
    log_axis(ax, "y", LOSS)
    return ax


@dataclass(frozen=True)
class Parabola:
    """One budget: its runs, and the parabola through them, if it has a lowest point inside."""

    flops: float
    parameters: Numbers  # of its runs
    loss: Numbers
    lowest: tuple[float, float] | None = None  # N*, and the loss there
    curvature: float = 0.0  # of the loss by log N, halved


def plot_isoflops(ax: Axes, budgets: Sequence[Parabola]) -> Axes:
    """Loss against size, one colour a budget, each with its parabola and its lowest point."""
    for number, budget in enumerate(sorted(budgets, key=lambda each: each.flops)):
        colour = BUDGET_COLOURS[number % len(BUDGET_COLOURS)]
        order = np.argsort(budget.parameters, kind="stable")
        sizes, losses = budget.parameters[order], budget.loss[order]
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
    """Write each budget beside its largest size, where no other name is near."""
    ends = [int(np.argmax(budget.parameters)) for budget in budgets]
    heights = np.log([b.loss[end] for b, end in zip(budgets, ends, strict=True)])
    every = np.log(np.concatenate([budget.loss for budget in budgets]))
    apart = LEAST_APART * float(np.ptp(every))
    last = np.inf
    for at in np.argsort(-heights, kind="stable"):
        if last - heights[at] < apart:
            continue
        last = heights[at]
        budget, end = budgets[at], ends[at]
        ax.annotate(
            f"{budget.flops:.0e}".replace("e+", "e"),
            (budget.parameters[end], budget.loss[end]),
            (6, 0),
            textcoords="offset points",
            va="center",
            color=MUTED,
            fontsize=10,
        )
