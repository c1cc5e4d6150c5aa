"""The data of a run's report, and its main charts: losses, gradients, speed, where time went."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainrig.objectives.next_token import CausalLM
from trainrig.objectives.objective_kinds import find_kind
from trainrig.objectives.objective_settings import ObjectiveSettings
from trainrig.report import plots
from trainrig.report.number_formats import format_duration, format_percent
from trainrig.report.plots import ChartFacts, Event, Line, Numbers
from trainrig.train.evaluations import ModelView, ScoredCheckpoint
from trainrig.train.run.checkpoint_scores import EarlyEnd
from trainrig.train.run.planned_loss import Prediction
from trainrig.train.run.progress import Goodput
from trainrig.train.run_report.sampled_answers import BatchAnswers, FollowedPrompt

MetricsLine = Mapping[str, Any]
FORGETTING_ROWS = 12  # sources shown: those that changed most
LAST_ROWS = 50  # about a screenful, folded below a chart; metrics.jsonl has every step


@dataclass(frozen=True)
class RunReportData:
    """Content of a run folder's files, as the charts need it."""

    folder: str
    verb: str
    steps: int  # steps that the run file asks for
    updates: Sequence[MetricsLine]  # one line per step, of the attempt that counts
    thrown_away: Sequence[Sequence[MetricsLine]]  # updates that a later attempt repeated
    held_out: Sequence[MetricsLine]
    events: Sequence[MetricsLine]
    goodput: Goodput
    prediction: Prediction | None = None  # prediction of the scaling law that it was planned with
    # Scores that count, by evaluation, each in order of steps.
    evaluated: Sequence[Sequence[ScoredCheckpoint]] = ()
    # Answers to the same prompts, by evaluation.
    followed: Mapping[str, Sequence[FollowedPrompt]] = field(default_factory=dict)
    end: EarlyEnd | None = None  # early end decided by scores
    objective: str = ""  # kind of the objective
    compared: Sequence[ModelView] = ()  # views before the first step, and after the last
    answers: Sequence[BatchAnswers] = ()  # completions of some batches that the model sampled
    measured: Sequence[str] = ()  # parts of the reward that have no weight in it
    running: bool = False  # True while a driver holds the run folder
    seconds_left: float | None = None  # estimate for a running run; None: not known yet

    @property
    def last_step(self) -> int:
        """Step at which the run ends, by its scores or its run file."""
        return self.end.step if self.end else self.steps

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
    def moves(self) -> list[MetricsLine]:
        """Events of the start of every attempt after the first."""
        return [event for event in self.events if event["event"] == "attempt_started"][1:]

    @property
    def marks(self) -> list[Event]:
        """Marks along the steps: restarts, resizes, and spikes with the steps that they undid."""
        found: list[Event] = []
        workers: int = 0
        spike: int | None = None
        for event in self.events:
            if event["event"] == "spike":
                spike = event["back_to"]
                name = "spike" if spike is None else "spike, rolled back"
                found.append(Event(event["step"], name, spike))
            elif event["event"] == "attempt_started":
                before = workers
                workers = event["workers"]
                if before and workers != before:
                    found.append(Event(event["step"], f"resize, {before} → {workers}"))
                elif before and spike is None:
                    found.append(Event(event["step"], "restart"))
                spike = None
        return found


def list_values(lines: Sequence[MetricsLine], name: str) -> Numbers:
    """Return the metric `name` of each line as an array; NaN for null."""
    found = [line[name] for line in lines]
    return np.array([np.nan if value is None else value for value in found], dtype=np.float64)


def select_lines(lines: Sequence[MetricsLine], name: str) -> list[MetricsLine]:
    """Return the lines that have a value of the metric `name`."""
    return [line for line in lines if line.get(name) is not None]


def draw_trends(
    lines: Sequence[MetricsLine],
    named: Mapping[str, str],
    unit: str,
    held_out: tuple[Line, ...] = (),
    **axis: Any,
) -> ChartFacts:
    """Draw metrics by step as trailing means, one line for each of `named`: labels by metric.

    The facts `first` and `last` have the means of each metric over `some` steps at either end.
    `axis`: fields of the y axis. `held_out` is drawn over the lines.
    """
    over = max(1, len(lines) // 40)
    some = min(10, max(1, len(lines) // 2))
    steps = list_values(lines, "step")
    colours: list[plots.Colour] = ["c1", *(plots.SERIES[1 + n % 3] for n in range(len(named) - 1))]
    drawn = [
        Line(
            steps,
            plots.compute_trailing_mean(list_values(lines, name), over),
            label if len(named) > 1 or held_out else "",
            colour,
        )
        for (name, label), colour in zip(named.items(), colours, strict=True)
    ]
    return {
        "plot": plots.Plot(
            [*drawn, *held_out], plots.Axis("step", whole=True), plots.Axis(unit, **axis)
        ),
        "columns": ("step", *named.values()),
        "rows": [(x["step"], *(x[name] for name in named)) for x in lines[-LAST_ROWS:]],
        "steps": len(lines),
        "over": over,
        "some": some,
        "first": {n: sum(line[n] for line in lines[:some]) / some for n in named},
        "last": {n: sum(line[n] for line in lines[-some:]) / some for n in named},
    }


def draw_loss(run_data: RunReportData) -> ChartFacts:
    """Draw the training loss by step across restarts, with the held-out loss."""
    found = draw_metric(run_data, "train/loss", f"loss ({run_data.unit})")
    held_out = run_data.held_out
    faint, mean = found["plot"].marks
    marks = [faint, mean]
    if held_out:
        losses = list_values(held_out, "eval/loss")
        at = list_values(held_out, "step")
        label = f"held-out {losses[-1]:.2f}"
        bold = f"mean of {found['over']} steps {mean.y[-1]:.2f}"
        marks[1] = Line(mean.x, mean.y, bold, width=2.2)
        marks.append(Line(at, losses, label, "c3", "D--", width=1))
    for number, lines in enumerate(run_data.thrown_away):
        label = "" if number else "repeated later"
        x, y = (list_values(lines, name) for name in ("step", "train/loss"))
        marks.append(Line(x, y, label, "c2", ":", width=2.5))
    axes = (plots.Axis("step", "short"), plots.Axis(f"loss ({run_data.unit})"))
    plot = plots.Plot([*marks, *run_data.marks], *axes, height=290)
    return found | {"plot": plot, "columns": ("step", run_data.unit)}


def draw_metric(run_data: RunReportData, name: str, unit: str, smoothed: bool = True) -> ChartFacts:
    """Draw every value of a metric by step, and its trailing mean if `smoothed`."""
    steps = list_values(run_data.updates, "step")
    found = list_values(run_data.updates, name)
    over = plots.choose_mean_over(len(steps)) if smoothed else 1
    form: Any = "short" if np.nanmax(found) >= 1_000 else "plain"
    lines = [run_data.updates[i] for i in plots.choose_evenly(len(steps), LAST_ROWS)]
    return {
        "plot": plots.Plot(
            plots.smooth(steps, found, over),
            plots.Axis("step", "short"),
            plots.Axis(unit, form, low=0),
            height=220,
        ),
        "columns": ("step", unit),
        "rows": [(line["step"], line[name]) for line in lines],
        "steps": len(steps),
        "over": over,
        "found": found,
        "unit": unit,
    }


def _list_held_out_sources(line: MetricsLine) -> dict[str, str]:
    """Return sources by the metric names of their held-out losses, without terms, diagnostics."""
    names = (n for n in line if n.startswith("eval/") and n.endswith("/loss") and n != "eval/loss")
    left_out = ("eval/terms/", "eval/diagnostics/")
    return {name: name[5:-5] for name in names if not name.startswith(left_out)}


def draw_forgetting(run_data: RunReportData) -> ChartFacts:
    """Draw the held-out loss by source before the first step and now."""
    first = run_data.held_out[0]
    last = run_data.held_out[-1]
    pairs = [
        plots.BeforeAfter(source, first[name], last[name])
        for name, source in sorted(_list_held_out_sources(last).items())
        if None not in (first.get(name), last[name])
    ]
    change = {pair.name: pair.after - pair.before for pair in pairs}
    shown = sorted(pairs, key=lambda pair: -abs(change[pair.name]))[:FORGETTING_ROWS]
    worst, best = (choose(change, key=lambda n: change[n]) for choose in (max, min))
    return {
        "plot": plots.Pairs(shown, plots.Axis(f"held-out loss ({run_data.unit})")),
        "columns": ("source", "before", "after", "change"),
        "rows": [(pair.name, pair.before, pair.after, change[pair.name]) for pair in pairs],
        "worst": (worst, change[worst]),
        "best": (best, change[best]),
        "step": last["step"],
    }


def draw_by_name(
    lines: Sequence[MetricsLine], names: Mapping[str, str], y_label: str, style: str = "-"
) -> ChartFacts:
    """Draw a metric of each of `names` (labels by metric), the four with the highest last value.

    `series` is ordered by the last value: label, first and last value.
    """
    known = {name: select_lines(lines, name) for name in names}
    ordered = sorted(names, key=lambda name: -known[name][-1][name])
    shown = ordered[: len(plots.SERIES)]
    drawn = [
        Line(
            list_values(known[name], "step"),
            list_values(known[name], name),
            names[name],
            colour,
            style,
        )
        for name, colour in zip(shown, plots.SERIES, strict=False)
    ]
    axes = (plots.Axis("step", "short"), plots.Axis(y_label))
    series = [(names[n], known[n][0][n], known[n][-1][n]) for n in ordered]
    return {"plot": plots.Plot(drawn, *axes, height=260), "series": series, "shown": len(shown)}


def draw_sources(run_data: RunReportData) -> ChartFacts:
    """Draw the held-out loss of each source by step."""
    names = _list_held_out_sources(run_data.held_out[-1])
    found = draw_by_name(run_data.held_out, names, f"held-out loss ({run_data.unit})", "o-")
    plot = found["plot"]
    plot = plots.Plot([*plot.marks, *run_data.marks], plot.x, plot.y, plot.height)
    return found | {"plot": plot, "columns": ("source", "first", "last"), "rows": found["series"]}


WHERE_TIME_GOES = {
    "productive": "steps that count",
    "lost": "repeated steps",
    "detection": "detecting failures",
    "restart": "starting and loading",
    "stall": "waiting for saves",
    "waiting": "waiting for nodes",
    "stopped": "no driver running",
}


def draw_goodput(goodput: Goodput) -> ChartFacts:
    """Draw the seconds of a run by what they were spent on."""
    seconds = {label: getattr(goodput, name) for name, label in WHERE_TIME_GOES.items()}
    rows = [
        plots.BarRow(
            label, (spent,), f"{format_duration(spent)} · {format_percent(spent, goodput.wall)}"
        )
        for label, spent in seconds.items()
        if spent > 0
    ]
    return {
        "plot": plots.Bars(rows, plots.Axis("seconds", "short")),
        "columns": ("use", "seconds"),
        "rows": list(seconds.items()),
    }
