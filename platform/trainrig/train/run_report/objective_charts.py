"""Charts of what a run's objective measures: preferences, labels, and parts of a mixture."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from trainrig import figures
from trainrig.figures import C1, C2, C3, C4, Numbers
from trainrig.objectives.objective_kinds import find_kind
from trainrig.report import Chart, ReportTable, escape_invisible, format_percent
from trainrig.train.run_report.run_charts import Line, RunReportData, list_values

TRAIN = "train/diagnostics/"
EVAL = "eval/diagnostics/"
ACCURACY = "reward_accuracy"
CHOSEN = "chosen_reward"
REJECTED = "rejected_reward"
CALIBRATION = f"{EVAL}calibration/"  # metric names of objectives/reward.py


def build_preference_charts(run_data: RunReportData) -> list[Chart]:
    """Build the charts for which the run has measurements."""
    made = (build_accuracy_chart, build_rewards_chart, build_reliability_chart)
    charts = [make(run_data) for make in made]
    return [chart for chart in charts if chart]


def _select_lines(lines: Sequence[Line], name: str) -> list[Line]:
    return [line for line in lines if line.get(name) is not None]


def build_accuracy_chart(run_data: RunReportData) -> Chart | None:
    """Plot the share of pairs whose chosen answer has the higher reward, by step."""
    lines = _select_lines(run_data.updates, TRAIN + ACCURACY)
    if not lines:
        return None
    held_out = _select_lines(run_data.held_out, EVAL + ACCURACY)
    shares = list_values(lines, TRAIN + ACCURACY)
    over = max(1, len(lines) // 40)

    def plot(ax: Axes) -> None:
        x, y = figures.thin(list_values(lines, "step"), figures.compute_trailing_mean(shares, over))
        ax.plot(x, y, color=C1, linewidth=1.8, label="trained on")
        if held_out:
            at = list_values(held_out, "step")
            found = list_values(held_out, EVAL + ACCURACY)
            ax.plot(at, found, "D-", color=C2, markersize=5, label="held out")
        ax.axhline(0.5, color=C3, linewidth=1, linestyle=":", label="chance")
        ax.legend(ncols=3)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.set(xlabel="step", ylabel="chosen above rejected", ylim=(0, 1.02))

    measured = held_out or lines
    name = EVAL if held_out else TRAIN
    first, last = (line[name + ACCURACY] for line in (measured[0], measured[-1]))
    where = "held-out pairs" if held_out else "pairs of a step"
    return Chart(
        f"The chosen answer has the higher reward in {format_percent(last, 1)} of "
        f"{where}; at first {format_percent(first, 1)}",
        figures.draw(plot, 240),
        label="Lines of the share of pairs whose chosen answer has the higher reward, by step.",
        caption=f"n = {len(lines):,} steps, mean of {over}. Diamonds: held-out pairs.",
        table=ReportTable(
            "Share of correctly ranked pairs",
            ("step", "share"),
            tuple((line["step"], line[name + ACCURACY]) for line in measured[-50:]),
        ),
    )


def build_rewards_chart(run_data: RunReportData) -> Chart | None:
    """Plot the mean reward of chosen and of rejected answers by step."""
    lines = _select_lines(run_data.updates, TRAIN + CHOSEN)
    lines = _select_lines(lines, TRAIN + REJECTED)
    if not lines:
        return None
    over = max(1, len(lines) // 40)

    def plot(ax: Axes) -> None:
        for name, colour, label in ((CHOSEN, C1, "chosen"), (REJECTED, C2, "rejected")):
            means = figures.compute_trailing_mean(list_values(lines, TRAIN + name), over)
            x, y = figures.thin(list_values(lines, "step"), means)
            ax.plot(x, y, color=colour, linewidth=1.8, label=label)
        ax.legend(ncols=2)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set(xlabel="step", ylabel="reward")

    last = lines[-1]
    chosen = last[TRAIN + CHOSEN]
    rejected = last[TRAIN + REJECTED]
    return Chart(
        f"Rewards at the end differ by {chosen - rejected:.3g}: chosen {chosen:.3g}, "
        f"rejected {rejected:.3g}",
        figures.draw(plot, 240),
        label="Lines of the mean rewards of chosen and rejected answers against steps.",
        caption=f"n = {len(lines):,} steps, mean of {over}.",
        table=ReportTable(
            "Rewards, last steps",
            ("step", "chosen", "rejected"),
            tuple((x["step"], x[TRAIN + CHOSEN], x[TRAIN + REJECTED]) for x in lines[-50:]),
        ),
    )


def build_reliability_chart(run_data: RunReportData) -> Chart | None:
    """Plot how often a reward model is right on held-out pairs, by its confidence."""
    last = run_data.held_out[-1] if run_data.held_out else {}
    shares = {
        int(name.removeprefix(CALIBRATION).split("/")[0]): value
        for name, value in last.items()
        if name.startswith(CALIBRATION) and name.endswith("/share") and value
    }
    if not shares:
        return None
    bins = sorted(shares)
    confidences, accuracies = (
        np.array([last[f"{CALIBRATION}{lowest}/{what}"] for lowest in bins])
        for what in ("confidence", "accuracy")
    )
    weights = np.array([shares[lowest] for lowest in bins])
    error = float((weights * np.abs(confidences - accuracies)).sum() / weights.sum())
    plot = partial(
        plot_reliability, confidences=confidences, accuracies=accuracies, weights=weights
    )
    return Chart(
        f"Confidence differs by {format_percent(error, 1)} from the share of correctly "
        "ranked pairs, on average",
        figures.draw(plot, 260),
        label=(
            "Share of correctly ranked held-out pairs against confidence. On the diagonal, "
            "both are equal."
        ),
        caption=(
            f"Held-out pairs at step {last['step']:,}, in ranges of confidence, which is "
            "sigmoid(|chosen − rejected|). A larger dot stands for more pairs."
        ),
        table=ReportTable(
            "Reliability",
            ("confidence from", "mean confidence", "right", "share of correctly ranked pairs"),
            tuple(
                (format_percent(at / 100, 1), float(sure), float(right), float(share))
                for at, sure, right, share in zip(
                    bins, confidences, accuracies, weights, strict=True
                )
            ),
        ),
    )


def plot_reliability(ax: Axes, confidences: Numbers, accuracies: Numbers, weights: Numbers) -> Axes:
    """Plot the share of correct pairs against confidence, with a dot for each range of it."""
    ax.plot([0.5, 1], [0.5, 1], color=C3, linewidth=1, linestyle=":", label="calibrated")
    ax.plot(confidences, accuracies, color=C1, linewidth=1.2)
    ax.scatter(confidences, accuracies, s=30 + 200 * weights, color=C1)
    ax.legend()
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set(xlabel="confidence", ylabel="right", xlim=(0.49, 1.01), ylim=(-0.03, 1.03))
    return ax


F1 = "f1"


def build_labelling_charts(run_data: RunReportData) -> list[Chart]:
    """Build the accuracy chart of a run that labels whole texts; [] without measurements."""
    objective = find_kind(run_data.objective)
    name = objective.right_diagnostic if objective else None
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
