"""Plot of the optimal size or tokens over compute, by objective."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from trainrig.figures import C1, C2, C3, C4, Numbers
from trainrig.scaling.plots.axes import log_axis

COLOURS = (C1, C2, C3, C4)  # more lines than these would be hard to distinguish


@dataclass(frozen=True)
class BestOf:
    """Optimal values for one objective, by compute."""

    name: str
    flops: Numbers
    best: Numbers


def plot_objectives(ax: Axes, objectives: Sequence[BestOf], quantity: str) -> Axes:
    """Plot `quantity` over compute, one line for each of `objectives`."""
    for objective, colour in zip(objectives, COLOURS, strict=False):
        ax.plot(objective.flops, objective.best, color=colour, linewidth=2.2, label=objective.name)
    log_axis(ax, "x", "compute (FLOPs, counted exactly)", powers=True)
    log_axis(ax, "y", quantity)
    ax.legend(loc="upper left")
    return ax
