"""Plot of the loss that a plan predicts, by the number of tokens at the end of training."""

from matplotlib.axes import Axes

from trainrig.figures import C1
from trainrig.scaling.plots.axes import log_axis
from trainrig.scaling.plots.frontier import BAND, Band


def plot_trajectory(ax: Axes, band: Band) -> Axes:
    """Plot predicted loss over tokens, with its interval as a band."""
    ax.plot(band.x, band.value, color=C1, linewidth=2.2)
    if band.low is not None and band.high is not None:
        ax.fill_between(band.x, band.low, band.high, color=C1, alpha=BAND, linewidth=0)
    log_axis(ax, "x", "tokens at the end of the run")
    ax.set_ylabel("loss (nats per token)")
    return ax
