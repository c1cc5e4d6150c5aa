"""Page that overlays the curves of several training runs.

The x axis is tokens rather than steps, so that runs with other batch sizes are comparable. Each
curve is averaged over the same share of its run, so that a longer run does not look rougher.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainrig import storage
from trainrig.errors import ConfigError
from trainrig.report import page_rendering, plots
from trainrig.report.plots import ChartFacts, Numbers
from trainrig.runs.run_list import ListedRun, read_listed_run, shorten_name
from trainrig.storage.writable import check_file
from trainrig.train.run_report.run_charts import RunReportData, list_values
from trainrig.train.run_report.run_page import read_report_data

# One colour and stroke for each run; more runs could not be distinguished.
STROKES = tuple((colour, stroke) for stroke in ("-", "--") for colour in plots.SERIES)


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
    return page_rendering.render_page(
        __name__,
        runs=runs,
        best=min(runs, key=_pick_judged_loss),
        name_loss=_name_judged_loss,
        pick_loss=_pick_judged_loss,
        fastest=max(runs, key=_compute_median_speed),
        speed=_compute_median_speed,
        longest=max(runs, key=lambda run: run.listed.tokens),
        hours=sum(run.listed.paid_hours for run in runs),
        held_out=_draw_held_out(runs),
        charts=[
            _draw_overlay(runs, "train/loss", "Training loss", "nats per token"),
            _draw_overlay(runs, "train/grad_norm", "Gradient norm", "norm"),
            _draw_overlay(runs, "train/lr", "Learning rate", "learning rate", smooth=False),
            _draw_overlay(runs, "train/tokens_per_second", "Speed", "tokens per second"),
        ],
    )


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
    runs: Sequence[OverlaidRun],
    curve: Callable[[OverlaidRun], tuple[Numbers, Numbers]],
    unit: str,
    marker: str = "",
) -> ChartFacts:
    """Draw `curve` of each run; the table has the last values."""
    curves = {run.name: curve(run) for run in runs}
    lines = [
        plots.Line(x, y, name[-24:], colour, f"{marker}{stroke}", size=4)
        for (name, (x, y)), (colour, stroke) in zip(curves.items(), STROKES, strict=False)
    ]
    ends = {name: float(y[-1]) for name, (_, y) in curves.items()}
    y = plots.Axis(unit, "short" if max(ends.values()) >= 1_000 else "plain")
    return {
        "plot": plots.Plot(lines, plots.Axis("tokens trained on", "short"), y, height=270),
        "rows": list(ends.items()),
        "low": min(ends.items(), key=lambda end: end[1]),
        "high": max(ends.items(), key=lambda end: end[1]),
    }


def _draw_overlay(
    runs: Sequence[OverlaidRun], name: str, title: str, unit: str, smooth: bool = True
) -> ChartFacts:
    """Draw one metric of all runs."""

    def curve(run: OverlaidRun) -> tuple[Numbers, Numbers]:
        found = list_values(run.data.updates, name)
        return run.tokens, plots.compute_trailing_mean(found, windows[run.name])

    windows = {
        run.name: plots.choose_mean_over(len(run.data.updates)) if smooth else 1 for run in runs
    }
    return _draw_curves(runs, curve, unit) | {
        "columns": ("run", unit),
        "title": title,
        "unit": unit,
        "windows": windows if smooth else {},
    }


def _draw_held_out(runs: Sequence[OverlaidRun]) -> ChartFacts:
    """Draw the held-out loss of the runs that measured it; {} if none did."""

    def curve(run: OverlaidRun) -> tuple[Numbers, Numbers]:
        tokens = {line["step"]: line["train/tokens"] for line in run.data.updates}
        lines = [line for line in run.data.held_out if line["step"] in tokens]
        x = np.array([tokens[line["step"]] for line in lines], dtype=np.float64)
        return x, list_values(lines, "eval/loss")

    measured = [run for run in runs if run.data.held_out]
    if not measured:
        return {}
    found = _draw_curves(measured, curve, "held-out loss (nats per token)", "o")
    return found | {"columns": ("run", "loss")}


def _compute_median_speed(run: OverlaidRun) -> float:
    return float(np.nanmedian(list_values(run.data.updates, "train/tokens_per_second")))
