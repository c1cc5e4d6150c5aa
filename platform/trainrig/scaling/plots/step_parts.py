"""Plot of how layouts spend the time of a training step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from trainrig.figures import C1, C2, C3, C4, MUTED, PAPER

COLOURS = (C1, C2, C3, C4, MUTED)


@dataclass(frozen=True)
class StepParts:
    """Time of one layout's training step, split by activity."""

    name: str
    seconds: Mapping[str, float]


def plot_step_parts(ax: Axes, steps: Sequence[StepParts]) -> Axes:
    """Plot one bar per layout, the first on top, divided into at most five parts."""
    y = np.arange(len(steps))
    left = np.zeros(len(steps))
    for colour, part in zip(COLOURS, steps[0].seconds, strict=False):
        width = np.array([step.seconds[part] for step in steps])
        ax.barh(y, width, left=left, color=colour, edgecolor=PAPER, linewidth=0.8, label=part)
        left += width
    ax.set_yticks(y, [step.name for step in steps])
    ax.set_ylim(len(steps) - 0.4, -0.6)
    ax.grid(visible=False, axis="y")
    ax.set_xlim(left=0)
    ax.set_xlabel("seconds of a step")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return ax
