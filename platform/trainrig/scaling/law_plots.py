"""Plots of measured and predicted losses, of optima over compute, and of task scores.

The plots are used by the pages of fits, plans and mixtures. Logarithmic axes have readable labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    PercentFormatter,
)

from trainrig.figures import C1, C2, C3, C4, GRID, INK, MUTED, PAPER, Numbers, thin
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


@dataclass(frozen=True)
class Profiled:
    """Least objective when one constant is fixed at each of `values`."""

    name: str
    values: Numbers
    rise: Numbers  # rise of the objective above its minimum, where 1 is the end of the interval
    best: float
    low: float | None  # None: unbounded on this side
    high: float | None


def plot_profile(ax: Axes, profile: Profiled) -> Axes:
    """Plot the rise of the objective over one constant; inside the interval it is below 1."""
    ax.plot(profile.values, profile.rise, color=C1, linewidth=2)
    ax.axhline(1, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    ax.plot([profile.best], [0], "D", color=C2, markersize=6)
    inside = np.array([x for x in (profile.low, profile.high) if x is not None])
    ax.plot(inside, np.ones(len(inside)), "|", color=C2, markersize=14, markeredgewidth=2)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set_ylim(-0.15, 3)
    ax.set(xlabel=profile.name, ylabel="rise of the objective (95% at 1)")
    return ax


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


@dataclass(frozen=True)
class ScoredRuns:
    """Scores of the runs that were evaluated on a task."""

    flops: Numbers
    score: Numbers
    error: Numbers  # standard error; NaN where there is none


def plot_task_scores(ax: Axes, law: Band, runs: ScoredRuns, chance: float) -> Axes:
    """Plot the scores of `runs` with the task's law, and the score of random guessing."""
    ax.plot(law.x, law.value, color=C1, linewidth=2.2, label="this law")
    if law.low is not None and law.high is not None:
        ax.fill_between(law.x, law.low, law.high, color=C1, alpha=BAND, linewidth=0)
    ax.errorbar(
        runs.flops, runs.score, yerr=np.nan_to_num(runs.error), fmt="o", color=C2, markersize=4,
        elinewidth=1, label="runs",
    )  # fmt: skip
    ax.axhline(chance, color=MUTED, linestyle="--", linewidth=1, label="chance")
    ax.set_xlim(law.x[0], law.x[-1])
    ax.set(ylabel="score")
    log_axis(ax, "x", "compute (FLOPs, 6ND)", powers=True)
    ax.legend(loc="upper left")
    return ax


OBJECTIVE_COLOURS = (C1, C2, C3, C4)  # more lines than these would be hard to distinguish


@dataclass(frozen=True)
class BestOf:
    """Optimal values for one objective, by compute."""

    name: str
    flops: Numbers
    best: Numbers


def plot_objectives(ax: Axes, objectives: Sequence[BestOf], quantity: str) -> Axes:
    """Plot `quantity` over compute, one line for each of `objectives`."""
    for objective, colour in zip(objectives, OBJECTIVE_COLOURS, strict=False):
        ax.plot(objective.flops, objective.best, color=colour, linewidth=2.2, label=objective.name)
    log_axis(ax, "x", "compute (FLOPs, counted exactly)", powers=True)
    log_axis(ax, "y", quantity)
    ax.legend(loc="upper left")
    return ax
