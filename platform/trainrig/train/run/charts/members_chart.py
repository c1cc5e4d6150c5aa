"""Chart of the loss of each objective in a run with a mixture of objectives."""

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from trainrig import figures
from trainrig.figures import C1, C2, C3, C4
from trainrig.report import Chart, ReportTable, escape_invisible
from trainrig.train.run.charts.run_charts import RunReportData, list_values

COLOURS = (C1, C2, C3, C4)  # more lines would be hard to tell apart
# The objectives of a mixture are its members. A metric "eval/diagnostics/loss/NAME" is the held-out
# loss of the member NAME.
OF_MEMBER = "diagnostics/loss/"


def build_members_chart(run_data: RunReportData) -> Chart | None:
    """Plot the loss of each objective by step, held out if measured.

    Returns None if no loss by objective is logged, as in a run with a single objective.
    """
    held = _find_names(run_data, "eval") if run_data.held_out else []
    split, lines = ("eval", run_data.held_out) if held else ("train", run_data.updates)
    names = held or _find_names(run_data, split)
    if not names:
        return None
    begin = len(split) + 1 + len(OF_MEMBER)
    series = {n: [line for line in lines if line.get(n) is not None] for n in names}
    last = {n: series[n][-1][n] for n in names}
    ordered = sorted(names, key=lambda name: -last[name])
    shown = ordered[: len(COLOURS)]

    def plot(ax: Axes) -> None:
        for name, colour in zip(shown, COLOURS, strict=False):
            x, y = figures.thin(list_values(series[name], "step"), list_values(series[name], name))
            ax.plot(x, y, color=colour, linewidth=1.8, label=escape_invisible(name[begin:])[:24])
        ax.legend(ncols=2)
        ax.xaxis.set_major_locator(MaxNLocator(6))
        ax.xaxis.set_major_formatter(EngFormatter(sep=" "))
        ax.set(xlabel="step", ylabel=f"loss ({run_data.unit})")

    what = "Held-out loss" if held else "Training loss"
    losses = ", ".join(f"{escape_invisible(name[begin:])} {last[name]:.2f}" for name in shown)
    more = (
        f" The {len(shown)} objectives with the highest loss are drawn."
        if len(ordered) > len(shown)
        else ""
    )
    return Chart(
        f"{what} by objective: {losses}",
        figures.draw(plot, 260),
        label=f"Lines of the {what.lower()} against steps, one per objective.",
        caption=(
            "Each line is the mean over the targets of its objective. Compare a loss with "
            f"earlier values of the same objective, not with other objectives.{more}"
        ),
        table=ReportTable(
            f"{what} by objective, first and last",
            ("objective", "first", "last"),
            tuple((name[begin:], series[name][0][name], last[name]) for name in ordered),
        ),
    )


def _find_names(run_data: RunReportData, split: str) -> list[str]:
    lines = run_data.held_out if split == "eval" else run_data.updates
    prefix = f"{split}/{OF_MEMBER}"
    found = {n: None for line in lines for n, value in line.items() if value is not None}
    return sorted(n for n in found if n.startswith(prefix))
