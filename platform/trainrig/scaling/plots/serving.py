"""Plots of a plan's trade-offs besides training compute: tokens served and tokens repeated."""

from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from trainrig.figures import C1, INK, MUTED, PAPER, Numbers
from trainrig.scaling.plots.axes import log_axis


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
