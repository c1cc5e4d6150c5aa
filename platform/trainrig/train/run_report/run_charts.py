"""The main charts of a run's report.

Titles are worded from the numbers, so a worse run gets a worse title.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FormatStrFormatter, MaxNLocator

from trainrig import figures, report
from trainrig.figures import (
    C1,
    C2,
    C3,
    C4,
    BarPart,
    BarRow,
    BeforeAfter,
    Interruptions,
    Mark,
    NoisyCurve,
    Numbers,
)
from trainrig.objectives.next_token import CausalLM
from trainrig.objectives.objective_kinds import find_kind
from trainrig.objectives.objective_settings import ObjectiveSettings
from trainrig.train.evaluations import ModelView, ScoredCheckpoint
from trainrig.train.run.checkpoint_scores import EarlyEnd
from trainrig.train.run.loss_prediction import Prediction
from trainrig.train.run.progress import Goodput
from trainrig.train.run_report.sampled_answers import BatchAnswers, FollowedPrompt

Line = Mapping[str, Any]
FORGETTING_ROWS = 12  # sources shown: those that changed most
TABLE_ROWS = 50  # about a screenful, folded below a chart; metrics.jsonl has every step
SOURCE_COLOURS = (C1, C2, C3, C4)  # more lines would be hard to tell apart


@dataclass(frozen=True)
class RunReportData:
    """Content of a run folder's files, as the charts need it."""

    folder: str
    verb: str
    steps: int  # steps that the run file asks for
    updates: Sequence[Line]  # one line per step, of the attempt that counts
    thrown_away: Sequence[Sequence[Line]]  # updates that a later attempt repeated, by attempt
    held_out: Sequence[Line]
    events: Sequence[Line]
    goodput: Goodput
    prediction: Prediction | None = None  # prediction of the scaling law that it was planned with
    # Scores that count, by evaluation, each in order of steps.
    evaluated: Sequence[Sequence[ScoredCheckpoint]] = ()
    # Answers to the same prompts, by evaluation.
    followed: Mapping[str, Sequence[FollowedPrompt]] = field(default_factory=dict)
    end: EarlyEnd | None = None  # early end decided by scores

    @property
    def last_step(self) -> int:
        """Step at which the run ends, by its scores or its run file."""
        return self.end.step if self.end else self.steps

    objective: str = ""  # kind of the objective
    compared: Sequence[ModelView] = ()  # views before the first step, and after the last
    answers: Sequence[BatchAnswers] = ()  # completions of some batches that the model sampled
    measured: Sequence[str] = ()  # parts of the reward that have no weight in it

    @property
    def unit(self) -> str:
        """Unit of the loss: nats per token, or nats for objectives of whole answers."""
        if not self.objective:  # the kind is not known
            return CausalLM.loss_unit
        objective = find_kind(self.objective)
        return objective.loss_unit if objective else ObjectiveSettings.loss_unit

    @property
    def scores(self) -> bool:
        """True if the model scores texts instead of generating them."""
        objective = find_kind(self.objective)
        return objective is not None and objective.scores()

    @property
    def moves(self) -> list[Line]:
        """Events of the start of every attempt after the first."""
        return [event for event in self.events if event["event"] == "attempt_started"][1:]

    @property
    def marks(self) -> list[Mark]:
        """Marks along the steps: restarts, resizes, and spikes with the steps that they undid."""
        found: list[Mark] = []
        workers: int = 0
        spike: int | None = None
        for event in self.events:
            if event["event"] == "spike":
                spike = event["back_to"]
                name = "spike" if spike is None else "spike, rolled back"
                found.append(Mark(event["step"], name, spike))
            elif event["event"] == "attempt_started":
                before = workers
                workers = event["workers"]
                if before and workers != before:
                    found.append(Mark(event["step"], f"resize, {before} → {workers}"))
                elif before and spike is None:
                    found.append(Mark(event["step"], "restart"))
                spike = None
        return found


def list_values(lines: Sequence[Line], name: str) -> Numbers:
    """Return the metric `name` of each line as an array; NaN for null."""
    found = [line[name] for line in lines]
    return np.array([np.nan if value is None else value for value in found], dtype=np.float64)


def _choose_mean_over(points: int) -> int:
    """Return the number of updates to smooth over: a fortieth of all, but at least four."""
    return max(1, min(points, max(4, points // 40)))


def build_loss_chart(run_data: RunReportData) -> report.Chart:
    """Plot the training loss by step across restarts, with the held-out loss."""
    steps = list_values(run_data.updates, "step")
    losses = list_values(run_data.updates, "train/loss")
    curve = NoisyCurve(
        steps, losses, _choose_mean_over(len(steps)), "step", f"loss ({run_data.unit})"
    )
    held_out = (list_values(run_data.held_out, "step"), list_values(run_data.held_out, "eval/loss"))
    marks = Interruptions(
        held_out=held_out,
        thrown_away=[
            (list_values(x, "step"), list_values(x, "train/loss")) for x in run_data.thrown_away
        ],
    )
    plot: Callable[[Axes], object]
    if len(held_out[0]):
        plot = partial(figures.plot_interrupted_curve, curve=curve, interruptions=marks)
        title = f"Held-out loss {held_out[1][0]:.2f} → {held_out[1][-1]:.2f} {run_data.unit}"
    else:
        plot = partial(figures.plot_curve, curve=curve)
        title = f"Training loss {losses[0]:.2f} → {losses[-1]:.2f} {run_data.unit}"
    return report.Chart(
        title,
        figures.draw(_add_marks(plot, run_data.marks), 290),
        label="Line of the training loss against steps, with the events of the run.",
        caption=f"n = {len(steps):,} steps, faint; bold: mean of the last {curve.mean_over}"
        + ("; diamonds: held out" if len(held_out[0]) else "")
        + ("; dotted: steps that a later attempt repeated" if marks.thrown_away else "")
        + f".{_describe_marks(run_data.marks)}",
        table=_build_series_table("Training loss", run_data.updates, "train/loss", run_data.unit),
    )


def _add_marks(plot: Callable[[Axes], object], marks: Sequence[Mark]) -> Callable[[Axes], None]:
    """Return a function that draws `plot`, and the marks over it."""

    def both(ax: Axes) -> None:
        plot(ax)
        figures.plot_marks(ax, marks)

    return both


def _describe_marks(marks: Sequence[Mark]) -> str:
    """Return a caption for the marks; "" if there are none."""
    if not marks:
        return ""
    undone = any(mark.since is not None for mark in marks)
    band = "; shaded: updates that a rollback undid" if undone else ""
    return f" Dashed lines mark {len(marks)} {'event' if len(marks) == 1 else 'events'}{band}."


def build_forgetting_chart(run_data: RunReportData) -> report.Chart:
    """Plot the held-out loss by source before the first step and now.

    For a run that continues another.
    """
    first = run_data.held_out[0]
    last = run_data.held_out[-1]
    names = sorted(n for n in _list_held_out_sources(last) if n in first)
    names = [n for n in names if None not in (first[n], last[n])]
    pairs = [BeforeAfter(n[5:-5], first[n], last[n]) for n in names]
    change = {pair.name: pair.after - pair.before for pair in pairs}
    worst = max(change, key=lambda n: change[n])
    best = min(change, key=lambda n: change[n])
    title = (
        f"No source was forgotten: no held-out loss has risen; {best} fell by {-change[best]:.2f}"
    )
    if change[worst] > 0:
        title = f"{worst} was forgotten most, {change[worst]:+.2f} {run_data.unit}"
        title += f"; {best} was learnt most, {change[best]:+.2f}" if change[best] < 0 else ""
    shown = sorted(pairs, key=lambda pair: -abs(change[pair.name]))[:FORGETTING_ROWS]
    plot = partial(figures.plot_pairs, pairs=shown, x_label=f"held-out loss ({run_data.unit})")
    return report.Chart(
        title,
        figures.draw(plot, 90 + 38 * len(shown)),
        label="Two dots per source: its held-out loss before the run and now.",
        caption=(
            f"The same rows, before the first step and at step {last['step']:,}. A dot to the "
            "right of its first one means forgetting."
        ),
        table=report.ReportTable(
            "Held-out loss by source, before and after",
            ("source", "before", "after", "change"),
            tuple((pair.name, pair.before, pair.after, change[pair.name]) for pair in pairs),
        ),
    )


def _list_held_out_sources(line: Line) -> list[str]:
    """Return the metric names of held-out losses by source, without terms and diagnostics."""
    names = (n for n in line if n.startswith("eval/") and n.endswith("/loss") and n != "eval/loss")
    return [n for n in names if not n.startswith(("eval/terms/", "eval/diagnostics/"))]


def build_sources_chart(run_data: RunReportData) -> report.Chart:
    """Plot the held-out loss of each source by step."""
    last = run_data.held_out[-1]
    names = {n: n[5:-5] for n in _list_held_out_sources(last)}
    ordered = sorted(names, key=lambda name: -last[name])
    shown = ordered[: len(SOURCE_COLOURS)]

    def plot(ax: Axes) -> None:
        for name, colour in zip(shown, SOURCE_COLOURS, strict=False):
            lines = [line for line in run_data.held_out if name in line]
            x, y = figures.thin(list_values(lines, "step"), list_values(lines, name))
            label = report.escape_invisible(names[name])[:24]
            ax.plot(x, y, "o-", color=colour, markersize=4, linewidth=1.8, label=label)
        ax.legend(ncols=2)
        ax.xaxis.set_major_locator(MaxNLocator(6))
        ax.xaxis.set_major_formatter(EngFormatter(sep=" "))
        ax.set(xlabel="step", ylabel=f"held-out loss ({run_data.unit})")

    title = f"Hardest to predict: {names[ordered[0]]}, {last[ordered[0]]:.2f} {run_data.unit}"
    if len(ordered) > 1:
        title += f"; easiest: {names[ordered[-1]]}, {last[ordered[-1]]:.2f}"
    more = (
        f" The {len(shown)} sources with the highest loss are drawn."
        if len(ordered) > len(shown)
        else ""
    )
    return report.Chart(
        title,
        figures.draw(_add_marks(plot, run_data.marks), 260),
        label="Lines of the held-out loss against steps, one per source.",
        caption=(
            f"n = {len(run_data.held_out):,} measurements, each on the same "
            f"rows.{more}{_describe_marks(run_data.marks)}"
        ),
        table=report.ReportTable(
            "Held-out loss by source, first and last",
            ("source", "first", "last"),
            tuple(
                (names[name], next(x[name] for x in run_data.held_out if name in x), last[name])
                for name in ordered
            ),
        ),
    )


def build_gradient_chart(run_data: RunReportData) -> report.Chart:
    """Plot the norm of the gradient by step."""
    norms = list_values(run_data.updates, "train/grad_norm")
    highest = int(np.nanargmax(norms))
    at = f"step {run_data.updates[highest]['step']:,}"
    title = f"Gradient norm: median {np.nanmedian(norms):.3g}, maximum {norms[highest]:.3g} "
    return _build_line_chart(run_data, "train/grad_norm", "gradient norm", f"{title}({at})")


def build_rate_chart(run_data: RunReportData) -> report.Chart:
    """Plot the learning rate by step."""
    rates = list_values(run_data.updates, "train/lr")
    title = f"Learning rate: maximum {rates.max():.3g}, {rates[-1]:.3g} at the end"
    return _build_line_chart(run_data, "train/lr", "learning rate", title, smooth=False)


def build_speed_chart(run_data: RunReportData) -> report.Chart:
    """Plot the tokens per second by step."""
    speeds = list_values(run_data.updates, "speed/tokens_per_second")
    title = f"Median throughput: {np.median(speeds):,.0f} tokens/s"
    return _build_line_chart(run_data, "speed/tokens_per_second", "tokens per second", title)


def _build_line_chart(
    run_data: RunReportData, name: str, unit: str, title: str, smooth: bool = True
) -> report.Chart:
    steps = list_values(run_data.updates, "step")
    found = list_values(run_data.updates, name)
    over = _choose_mean_over(len(steps)) if smooth else 1

    def plot(ax: Axes) -> None:
        figures.plot_curve(ax, NoisyCurve(steps, found, over, "step", unit))
        ax.set_ylim(bottom=0)
        if np.nanmax(found) >= 1_000:
            ax.yaxis.set_major_formatter(EngFormatter(sep=" "))
        else:
            ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))

    caption = f"n = {len(steps):,} steps"
    return report.Chart(
        title,
        figures.draw(plot, 220),
        label=f"Line of the {unit} against steps.",
        caption=f"{caption}, faint; bold: mean of the last {over}." if over > 1 else f"{caption}.",
        table=_build_series_table(unit.capitalize(), run_data.updates, name, unit),
    )


def _build_series_table(
    caption: str, lines: Sequence[Line], name: str, unit: str
) -> report.ReportTable:
    chosen = np.unique(np.linspace(0, len(lines) - 1, min(TABLE_ROWS, len(lines))).astype(int))
    rows: list[tuple[report.Cell, ...]] = [(lines[i]["step"], lines[i][name]) for i in chosen]
    some = f", {len(rows)} of {len(lines):,} steps" if len(rows) < len(lines) else ""
    return report.ReportTable(f"{caption}{some}", ("step", unit), tuple(rows))


WHERE_TIME_GOES = {
    "productive": "steps that count",
    "lost": "repeated steps",
    "detection": "detecting failures",
    "restart": "starting and loading",
    "stall": "waiting for saves",
    "waiting": "waiting for nodes",
    "stopped": "no driver running",
}


def build_goodput_chart(goodput: Goodput) -> report.Chart:
    """Plot the seconds of a run by what they were spent on."""
    seconds = {label: getattr(goodput, name) for name, label in WHERE_TIME_GOES.items()}
    shown = {label: value for label, value in seconds.items() if value > 0}
    rows = [
        BarRow(
            label,
            (value,),
            f"{report.format_duration(value)} · {report.format_percent(value, goodput.wall)}",
        )
        for label, value in shown.items()
    ]
    plot = partial(figures.plot_rows, rows=rows, parts=(BarPart("seconds", C1),), x_label="seconds")
    return report.Chart(
        f"{report.format_percent(goodput.share, 1)} of the time was spent on steps that count",
        figures.draw(plot, 60 + 36 * len(rows)),
        label="Bars of seconds by what they were spent on.",
        caption=(
            f"{report.format_duration(goodput.wall)} in all, since the first start. The title's "
            "share is of the time during which a driver was running."
        ),
        table=report.ReportTable("Seconds by use", ("use", "seconds"), tuple(seconds.items())),
    )
