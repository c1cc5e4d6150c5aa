"""Plots of a plan's trade-offs, of a layout's step time, and of a mixture's shares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from trainrig.figures import C1, C2, C3, C4, INK, MUTED, PAPER, Numbers
from trainrig.report import escape_invisible
from trainrig.scaling.law_plots import BAND, Band, log_axis


def plot_trajectory(ax: Axes, band: Band) -> Axes:
    """Plot predicted loss over tokens, with its interval as a band."""
    ax.plot(band.x, band.value, color=C1, linewidth=2.2)
    if band.low is not None and band.high is not None:
        ax.fill_between(band.x, band.low, band.high, color=C1, alpha=BAND, linewidth=0)
    log_axis(ax, "x", "tokens at the end of the run")
    ax.set_ylabel("loss (nats per token)")
    return ax


@dataclass(frozen=True)
class Served:
    """Tokens per parameter of the cheapest model for a given loss, by tokens served."""

    tokens_served: Numbers
    tokens_per_parameter: Numbers
    training_alone: float  # tokens per parameter if no tokens are served


def plot_served(ax: Axes, served: Served, chosen: tuple[float, float] | None = None) -> Axes:
    """Plot D/N over the tokens served (Sardana et al., arXiv:2401.00448), marking `chosen`."""
    ax.plot(served.tokens_served, served.tokens_per_parameter, color=C1, linewidth=2.2)
    ax.axhline(served.training_alone, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    top: dict[str, Any] = {"textcoords": "offset points", "color": MUTED, "fontsize": 10}
    at = (float(served.tokens_served[0]), served.training_alone)
    ax.annotate("best for training alone", at, (4, 5), **top)
    _mark_chosen(ax, chosen)
    log_axis(ax, "x", "tokens served")
    log_axis(ax, "y", "tokens per parameter (D/N)")
    return ax


@dataclass(frozen=True)
class RepeatedTokens:
    """Effective number of unique tokens, by how many epochs the unique tokens are repeated."""

    epochs: Numbers
    effective: Numbers  # tokens
    unique: float  # tokens


def plot_epochs(
    ax: Axes, repeated: RepeatedTokens, chosen: tuple[float, float] | None = None
) -> Axes:
    """Plot effective tokens over epochs (Muennighoff et al., arXiv:2305.16264)."""
    ax.plot(
        repeated.epochs, repeated.epochs * repeated.unique, color=MUTED, linewidth=1,
        linestyle=(0, (4, 3)), label="if all were new",
    )  # fmt: skip
    ax.plot(repeated.epochs, repeated.effective, color=C1, linewidth=2.2, label="effective tokens")
    _mark_chosen(ax, chosen)
    ax.legend(loc="upper left")
    log_axis(ax, "x", "epochs of the unique tokens")
    log_axis(ax, "y", "tokens")
    return ax


def _mark_chosen(ax: Axes, chosen: tuple[float, float] | None) -> None:
    if chosen is not None:
        ax.plot(
            [chosen[0]], [chosen[1]], "D", markerfacecolor=PAPER, markeredgecolor=INK,
            markeredgewidth=2, markersize=8, label="this plan", zorder=3,
        )  # fmt: skip


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
