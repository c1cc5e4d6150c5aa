"""Plot of a task's scores over compute, with the task's law."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from trainrig.figures import C1, C2, MUTED, Numbers
from trainrig.scaling.plots.axes import log_axis
from trainrig.scaling.plots.frontier import BAND, Band


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
