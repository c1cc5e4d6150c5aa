"""Page that overlays the curves of several training runs.

The x axis is tokens rather than steps, so that runs with other batch sizes are comparable. Each
curve is averaged over the same share of its run, so that a longer run does not look rougher.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from trainrig import figures, report, storage
from trainrig.errors import ConfigError
from trainrig.figures import C1, C2, C3, C4, Numbers
from trainrig.report import (
    Chart,
    KeyFigure,
    PageCommand,
    ReportTable,
    Section,
    escape_invisible,
    format_short,
)
from trainrig.runs.run_list import ListedRun, read_listed_run, shorten_name
from trainrig.storage.writable import check_file
from trainrig.train.run_report.run_charts import RunReportData, list_values
from trainrig.train.run_report.run_page import read_report_data

# One colour and stroke for each run; more runs could not be distinguished.
STROKES = tuple((c, s) for s in ("-", "--") for c in (C1, C2, C3, C4))
SMOOTHED = 40  # a curve is a mean over 1/40 of its run


@dataclass(frozen=True)
class OverlaidRun:
    """One run with its name on the page."""

    name: str
    listed: ListedRun
    data: RunReportData

    @property
    def tokens(self) -> Numbers:
        """Tokens trained on, by update."""
        return list_values(self.data.updates, "train/tokens")


def read_runs(folders: Sequence[str]) -> list[OverlaidRun]:
    """Read the data of the runs in `folders`.

    Raises ConfigError for too many folders or one named twice, and DataError for a folder without a
    run or without an update.
    """
    wanted = [folder.rstrip("/") for folder in folders]
    if not 2 <= len(wanted) <= len(STROKES) or len(set(wanted)) < len(wanted):
        raise ConfigError(
            f"{len(wanted)} runs are given; name two to {len(STROKES)} different runs"
        )
    above = _find_common_folder(wanted)
    found = [(read_report_data(folder), read_listed_run(folder)) for folder in wanted]
    return [OverlaidRun(shorten_name(run, above), run, data) for data, run in found]


def build_overlay_page(runs: Sequence[OverlaidRun]) -> str:
    """Return the page as HTML text."""
    charts = [
        _draw_overlay(runs, "train/loss", "Training loss", "nats per token"),
        _draw_overlay(runs, "train/grad_norm", "Gradient norm", "norm"),
        _draw_overlay(runs, "train/lr", "Learning rate", "learning rate", smooth=False),
        _draw_overlay(runs, "speed/tokens_per_second", "Speed", "tokens per second"),
    ]
    if any(run.data.held_out for run in runs):
        charts.insert(0, _draw_held_out(runs))
    best = min(runs, key=_pick_judged_loss)
    page = report.ReportPage(
        title="Training runs",
        verdict=report.Verdict(
            f"{best.name} has the lowest {_name_judged_loss(best)},"
            f" {_pick_judged_loss(best):.3f} nats per token."
        ),
        figures=_build_key_figures(runs),
        sections=(
            Section("curves", "Comparison of the runs", tuple(charts)),
            Section("runs", "The runs", (_build_table(runs),)),
        ),
        commands=(
            PageCommand(
                f"trainrig report {best.listed.folder}", "Report of the run with the lowest loss."
            ),
        ),
        provenance={"Runs": {run.name: run.listed.folder for run in runs}},
    )
    return page.render_html()


def write_overlay(folders: Sequence[str], path: str) -> str:
    """Write the page of the runs in `folders` to `path`, and return `path`.

    Raises the errors of `read_runs`, and ConfigError if the file cannot be written.
    """
    check_file(path)
    storage.write(path, build_overlay_page(read_runs(folders)).encode())
    return path


def _find_common_folder(folders: Sequence[str]) -> str:
    """Return the deepest folder that contains all of them."""
    parts = [folder.split("/")[:-1] for folder in folders]
    shared = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return "/".join(shared)


def _name_judged_loss(run: OverlaidRun) -> str:
    return "loss" if run.listed.best_held_out is None else "held-out loss"


def _pick_judged_loss(run: OverlaidRun) -> float:
    best = run.listed.best_held_out
    loss = best if best is not None else run.listed.loss
    return np.inf if loss is None else loss


def _draw_curves(
    runs: Sequence[OverlaidRun], curve: Callable[[OverlaidRun], tuple[Numbers, Numbers]], marks: str
) -> Callable[[Axes], None]:
    def plot(ax: Axes) -> None:
        for run, (colour, stroke) in zip(runs, cycle(STROKES), strict=False):
            x, y = figures.thin(*curve(run))
            label = escape_invisible(run.name)[-24:]
            ax.plot(x, y, stroke + marks, color=colour, linewidth=1.8, markersize=4, label=label)
        ax.legend(ncols=2)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.xaxis.set_major_formatter(EngFormatter(sep=" "))
        ax.set_xlabel("tokens trained on")

    return plot


def _draw_overlay(
    runs: Sequence[OverlaidRun], name: str, title: str, unit: str, smooth: bool = True
) -> Chart:
    """Draw one metric of all runs."""

    def curve(run: OverlaidRun) -> tuple[Numbers, Numbers]:
        found = list_values(run.data.updates, name)
        return run.tokens, figures.compute_trailing_mean(
            found, _choose_mean_over(run)
        ) if smooth else found

    ends = {run.name: float(curve(run)[1][-1]) for run in runs}
    low = min(ends, key=lambda n: ends[n])
    high = max(ends, key=lambda n: ends[n])
    plot = _draw_curves(runs, curve, "")

    def draw_labelled(ax: Axes) -> None:
        plot(ax)
        ax.set_ylabel(unit)
        if max(ends.values()) >= 1_000:
            ax.yaxis.set_major_formatter(EngFormatter(sep=" "))

    windows = ", ".join(f"{run.name} {_choose_mean_over(run)}" for run in runs)
    return Chart(
        f"{title} at the end: {format_short(ends[low])} ({low}) to {format_short(ends[high])} "
        f"({high})",
        figures.draw(draw_labelled, 270),
        label=f"Lines of the {unit} against tokens, one for each run.",
        caption=f"Means of the last steps: {windows}." if smooth else "Every step is drawn.",
        table=ReportTable(f"{title} at the end", ("run", unit), tuple(ends.items())),
    )


def _choose_mean_over(run: OverlaidRun) -> int:
    points = len(run.data.updates)
    return max(1, min(points, max(4, points // SMOOTHED)))


def _draw_held_out(runs: Sequence[OverlaidRun]) -> Chart:
    measured = [run for run in runs if run.data.held_out]

    def curve(run: OverlaidRun) -> tuple[Numbers, Numbers]:
        tokens = {line["step"]: line["train/tokens"] for line in run.data.updates}
        lines = [line for line in run.data.held_out if line["step"] in tokens]
        x = np.array([tokens[line["step"]] for line in lines], dtype=np.float64)
        return x, list_values(lines, "eval/loss")

    plot = partial(_draw_labelled, plot=_draw_curves(measured, curve, "o"))
    lasts = {run.name: float(curve(run)[1][-1]) for run in measured}
    best = min(lasts, key=lambda name: lasts[name])
    return Chart(
        f"Lowest held-out loss at the end: {best}, {lasts[best]:.3f} nats per token",
        figures.draw(plot, 270),
        label="Lines of the held-out loss against tokens, one for each run.",
        caption="Comparable only between runs with the same held-out text and the same tokenizer.",
        table=ReportTable("Held-out loss at the end", ("run", "loss"), tuple(lasts.items())),
    )


def _draw_labelled(ax: Axes, plot: Callable[[Axes], None]) -> None:
    plot(ax)
    ax.set_ylabel("held-out loss (nats per token)")


def _build_key_figures(runs: Sequence[OverlaidRun]) -> tuple[KeyFigure, ...]:
    listed = [run.listed for run in runs]
    fastest = max(runs, key=_compute_median_speed)
    going = sum(run.state == "running" for run in listed)
    tokens = max(runs, key=lambda run: run.listed.tokens)
    hours = sum(run.paid_hours for run in listed)
    return (
        KeyFigure("Runs", str(len(runs)), "", f"{going} running"),
        KeyFigure("Most tokens", format_short(tokens.listed.tokens), "", tokens.name),
        KeyFigure(
            "Fastest", format_short(_compute_median_speed(fastest)), "tokens/s", fastest.name
        ),
        KeyFigure("Worker hours", f"{hours:.2f}", "h", "of all runs, with restarts"),
    )


def _compute_median_speed(run: OverlaidRun) -> float:
    return float(np.nanmedian(list_values(run.data.updates, "speed/tokens_per_second")))


def _build_table(runs: Sequence[OverlaidRun]) -> ReportTable:
    rows = tuple(
        (
            run.name,
            run.listed.state,
            run.listed.step,
            run.listed.tokens,
            run.listed.loss,
            run.listed.best_held_out,
            len(run.data.moves),
        )
        for run in runs
    )
    columns = ("run", "state", "steps", "tokens", "loss", "best held-out loss", "restarts")
    return ReportTable("The runs, in the order of the command", columns, rows)
