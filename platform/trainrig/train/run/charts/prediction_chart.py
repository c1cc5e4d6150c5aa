"""Chart of a run's loss against its prediction by a scaling law."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from trainrig import figures
from trainrig.figures import C1, C2, Numbers, thin
from trainrig.report import Chart, ReportTable, format_short
from trainrig.train.run.charts.run_charts import TABLE_ROWS, RunReportData, list_values
from trainrig.train.run.prediction import Prediction

BAND = 0.22  # opacity


@dataclass(frozen=True)
class MeasuredLoss:
    """Measured loss by the tokens trained on."""

    tokens: Numbers
    loss: Numbers  # nats per token
    held_out: bool  # otherwise of the training batches

    @property
    def what(self) -> str:
        """Name of the loss."""
        return "held-out loss" if self.held_out else "training loss"


def measure_loss(run_data: RunReportData) -> MeasuredLoss:
    """Return the held-out loss, which laws are fitted to, or else the training loss."""
    tokens_at = {line["step"]: float(line["train/tokens"]) for line in run_data.updates}
    lines = [line for line in run_data.held_out if line["step"] in tokens_at]
    if lines:
        tokens = np.array([tokens_at[line["step"]] for line in lines])
        return MeasuredLoss(tokens, list_values(lines, "eval/loss"), True)
    tokens = np.array(list(tokens_at.values()))
    return MeasuredLoss(tokens, list_values(run_data.updates, "train/loss"), False)


def compare_prediction(
    run_data: RunReportData, prediction: Prediction
) -> tuple[float, float, float, float]:
    """Return the last loss, and the predicted value, low and high for its number of tokens."""
    came = measure_loss(run_data)
    return float(came.loss[-1]), *prediction.interpolate(float(came.tokens[-1]))


def build_prediction_chart(run_data: RunReportData, prediction: Prediction) -> Chart:
    """Plot the predicted loss with its interval, and the measured loss."""
    came = measure_loss(run_data)
    actual, predicted, low, high = compare_prediction(run_data, prediction)
    sure = "" if np.isnan(low) else f" [{low:.3f}, {high:.3f}]"
    ended = run_data.updates[-1]["step"] >= run_data.steps
    title = (
        f"{came.what.capitalize()} {actual:.3f}{'' if ended else ' so far'}; law "
        f"{prediction.law} predicted {predicted:.3f}{sure}: {actual / predicted - 1:+.1%}"
    )
    at = np.unique(np.linspace(0, len(came.loss) - 1, min(TABLE_ROWS, len(came.loss))).astype(int))
    rows = tuple(
        (
            format_short(came.tokens[i]),
            came.loss[i],
            prediction.interpolate(float(came.tokens[i]))[0],
        )
        for i in at
    )
    return Chart(
        title,
        figures.draw(partial(plot_prediction, measured=came, prediction=prediction), 270),
        label="The predicted loss against tokens with its interval, and the measured loss.",
        caption=(
            "The prediction for each number of tokens is the loss of a run that ends there "
            "with a decayed learning rate. The loss of an unfinished run therefore lies "
            "above the prediction."
        ),
        table=ReportTable("Loss, nats per token", ("tokens", came.what, "predicted"), rows),
    )


def plot_prediction(ax: Axes, measured: MeasuredLoss, prediction: Prediction) -> Axes:
    """Plot the predicted loss as a dashed line with its band, and the measured loss as points."""
    ax.plot(
        prediction.tokens, prediction.loss, "--", color=C2, linewidth=2, label="predicted, if ended"
    )
    if not np.isnan(prediction.low).any():
        ax.fill_between(
            prediction.tokens, prediction.low, prediction.high, color=C2, alpha=BAND, linewidth=0
        )
    style = "D-" if measured.held_out else "-"
    line = thin(measured.tokens, measured.loss)
    ax.plot(*line, style, color=C1, markersize=4, linewidth=1.4, label=measured.what)
    ax.xaxis.set_major_formatter(EngFormatter(sep=" "))
    ax.set(xlabel="tokens trained on", ylabel="loss (nats per token)")
    ax.set_xlim(left=0)
    ax.legend(loc="upper right")
    return ax
