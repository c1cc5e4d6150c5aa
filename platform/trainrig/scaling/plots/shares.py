"""Plot of the shares of sources in a data mixture."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from trainrig.figures import C1, C2, PAPER
from trainrig.report import escape_invisible

LONGEST = 30  # longest name in characters; the table has the whole name


@dataclass(frozen=True)
class Share:
    """Proposed share of one source in a mixture, its interval, and its average over the runs."""

    source: str
    share: float
    low: float
    high: float
    average: float


def plot_shares(ax: Axes, shares: Sequence[Share]) -> Axes:
    """Plot one row per source: its share with the interval, and the runs' average as a circle."""
    y = np.arange(len(shares))
    ax.hlines(y, [s.low for s in shares], [s.high for s in shares], color=C1, linewidth=2)
    ax.plot(
        [s.average for s in shares], y, "o", markerfacecolor=PAPER, markeredgecolor=C2,
        markeredgewidth=1.5, markersize=7, label="average of the runs",
    )  # fmt: skip
    ax.plot([s.share for s in shares], y, "o", color=C1, markersize=7, label="proposed")
    ax.set_yticks(y, [_shorten(s.source) for s in shares])
    ax.set_ylim(len(shares) - 0.4, -0.6)
    ax.grid(visible=False, axis="y")
    ax.set_xlim(left=0)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_xlabel("share of the samples")
    ax.legend(loc="lower right")
    return ax


def _shorten(name: str) -> str:
    name = escape_invisible(name)
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"
