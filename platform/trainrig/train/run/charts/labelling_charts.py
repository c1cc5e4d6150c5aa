"""Chart of the accuracy of a run on whole texts, from the diagnostics of its objective."""

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from trainrig import figures
from trainrig.figures import C1, C2
from trainrig.report import Chart, ReportTable, format_percent
from trainrig.train.run.charts.run_charts import RunReportData, list_values

TRAIN = "train/diagnostics/"
EVAL = "eval/diagnostics/"
# Diagnostic with the share of correct rows, by objective (objectives/classification.py).
RIGHT = {"Classification": "accuracy", "AnswerSpan": "exact"}
F1 = "f1"


def build_labelling_charts(run_data: RunReportData) -> list[Chart]:
    """Build the accuracy chart of a run that labels whole texts; [] without measurements."""
    name = RIGHT.get(run_data.objective)
    lines = [line for line in run_data.updates if line.get(f"{TRAIN}{name}") is not None]
    if name is None or not lines:
        return []
    held_out = [line for line in run_data.held_out if line.get(EVAL + name) is not None]
    over = max(1, len(lines) // 40)

    def plot(ax: Axes) -> None:
        means = figures.compute_trailing_mean(list_values(lines, TRAIN + name), over)
        x, y = figures.thin(list_values(lines, "step"), means)
        ax.plot(x, y, color=C1, linewidth=1.8, label="trained on")
        if held_out:
            at = list_values(held_out, "step")
            found = list_values(held_out, EVAL + name)
            ax.plot(at, found, "D-", color=C2, markersize=5, label="held out")
        ax.legend(ncols=2)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.set(xlabel="step", ylabel="rows predicted correctly", ylim=(0, 1.02))

    measured, prefix = (held_out, EVAL) if held_out else (lines, TRAIN)
    last = measured[-1]
    where = "held-out rows" if held_out else "rows of a step"
    f1 = f", F1 {last[prefix + F1]:.3f}" if prefix + F1 in last else ""
    return [
        Chart(
            f"{format_percent(last[prefix + name], 1)} of {where} are predicted correctly{f1}",
            figures.draw(plot, 240),
            label="Lines of the share of correctly predicted rows, by step.",
            caption=f"n = {len(lines):,} steps, mean of {over}. Diamonds: held-out rows.",
            table=ReportTable(
                "Correctly predicted rows",
                ("step", "share", "F1"),
                tuple(
                    (line["step"], line[prefix + name], line.get(prefix + F1, ""))
                    for line in measured[-50:]
                ),
            ),
        )
    ]
