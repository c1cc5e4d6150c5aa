"""Plot of a constant's likelihood profile: how strongly the runs determine the constant."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from trainrig.figures import C1, C2, MUTED, Numbers


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
