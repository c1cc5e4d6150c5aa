"""`report.html` of a run folder: its losses, speed, faults and where its time went.

It is drawn anew from what the folder holds, so it may be asked for while the run goes on.
"""

import contextlib
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from trainrig import report, storage
from trainrig.errors import DataError
from trainrig.report import KeyFigure, Section, Table, duration, percent, short
from trainrig.storage.writable import check_folder
from trainrig.train.run import metrics
from trainrig.train.run.goodput import account
from trainrig.train.run.prediction import read_prediction
from trainrig.train.run.prediction_chart import comparison, prediction_chart
from trainrig.train.run.run_charts import (
    Line,
    RunStory,
    goodput_chart,
    gradient_chart,
    loss_chart,
    rate_chart,
    sources_chart,
    speed_chart,
    values,
)
from trainrig.train.run.run_folder import RunFolder

PAGE = "report.html"
RUN_FILE = "run.toml"
EVENTS_SHOWN = 200
# Left out of the table: each worker's, and what is as usual.
ORDINARY = {"worker_started", "first_step", "checkpoint", "numerics"}
COMMON = {"event", "time", "pid", "host", "attempt", "step"}  # have columns, or say nothing here


def write_report(folder: str) -> str:
    """Draw the report of the run in `folder`; where it is.

    Raises DataError for a folder without a run, or without one update in it.
    """
    path = storage.join(folder, PAGE)
    story = read_story(folder)
    check_folder(folder)
    storage.write(path, run_page(story).encode())
    return path


@contextlib.contextmanager
def reported(folder: str) -> Iterator[None]:
    """However the block, which drives the run in `folder`, ends: write its report after it."""
    try:
        yield
    finally:
        if metrics.series(folder):
            write_report(folder)


def read_story(folder: str) -> RunStory:
    """What the files of the run in `folder` say so far. Raises DataError if that is nothing."""
    file = storage.join(folder, RUN_FILE)
    if not storage.exists(file):
        raise DataError(f"{folder}: no {RUN_FILE}; name the folder of a run of pretrain, posttrain")
    lines = list(metrics.read_lines(folder))
    if not lines:
        raise DataError(f"{folder}: not one update yet, so there is nothing to report")
    run = tomllib.loads(storage.read(file).decode())
    events = list(RunFolder(folder).events())
    updates = metrics.series(folder)
    counted = {line["step"]: line["attempt"] for line in updates}
    thrown: dict[int, list[Line]] = {}
    for line in lines:
        if line["attempt"] < counted[line["step"]]:
            thrown.setdefault(line["attempt"], []).append(line)
    return RunStory(
        folder=folder,
        verb=run["stage"],
        steps=run["training"]["steps"],
        updates=updates,
        thrown_away=list(thrown.values()),
        held_out=metrics.held_out_series(folder),
        events=events,
        goodput=account(events, lines),
        prediction=read_prediction(folder),
    )


def run_page(story: RunStory) -> str:
    """The page as HTML text."""
    charts = [loss_chart(story)]
    if story.prediction:
        charts.append(prediction_chart(story, story.prediction))
    if story.held_out:
        charts.append(sources_chart(story))
    sections = [Section("loss", "How well it predicts", tuple(charts))]
    steady = (gradient_chart(story), rate_chart(story))
    sections.append(Section("steadiness", "How steadily it learnt", steady))
    speed = (speed_chart(story), *((goodput_chart(story.goodput),) if story.goodput.wall else ()))
    sections.append(Section("time", "Where the time went", speed))
    sections.append(Section("events", "What happened", (_events(story),)))
    page = report.Page(
        title=f"{story.verb.capitalize()} run",
        verdict=_verdict(story),
        figures=_key_figures(story),
        sections=tuple(sections),
        commands=_commands(story),
        provenance=_provenance(story),
    )
    return page.html()


def _verdict(story: RunStory) -> report.Verdict:
    done = story.updates[-1]["step"]
    warnings = []
    skipped = [event for event in story.events if event["event"] == "step_skipped"]
    if skipped:
        warnings.append(
            f"Global batches that no update was made from: {len(skipped)}; see the events."
        )
    if any(event["event"] == "numerics_changed" for event in story.events):
        warnings.append("Machine or libraries changed on the way: other bits may have resulted.")
    if done < story.steps:
        warnings.append("Not at its last step: the same command goes on.")
    what = "held-out loss" if story.held_out else "loss"
    lines, name = (story.held_out, "eval/loss") if story.held_out else (story.updates, "train/loss")
    loss = values(lines, name)[-1]
    sentence = f"{done:,} of {story.steps:,} steps; {what} {loss:.3f} nats per token."
    state: Literal["done", "warning"] = "warning" if warnings else "done"
    return report.Verdict(sentence, state, tuple(warnings))


def _key_figures(story: RunStory) -> tuple[KeyFigure, ...]:
    losses = values(story.updates, "train/loss")
    speeds = values(story.updates, "speed/tokens_per_second")
    last = story.updates[-1]
    figures = [
        KeyFigure("Training loss", f"{losses[-1]:.3f}", "nats per token", f"{losses[0]:.3f} first"),
        KeyFigure("Trained on", short(last["train/tokens"]), "tokens", f"{last['step']:,} steps"),
        KeyFigure(
            "Speed",
            short(float(np.median(speeds))),
            "tokens/s",
            f"the median; {last['cluster/workers']:.0f} workers in the end",
        ),
        KeyFigure(
            "Goodput",
            percent(story.goodput.share, 1),
            "",
            f"of {duration(story.goodput.wall)}, in attempts: {len(story.moves) + 1}",
        ),
    ]
    if story.held_out:
        held_out = values(story.held_out, "eval/loss")
        first = f"{held_out[0]:.3f} at step {story.held_out[0]['step']:,}"
        figures.insert(
            0, KeyFigure("Held-out loss", f"{held_out[-1]:.3f}", "nats per token", first)
        )
    if story.prediction:
        actual, predicted, low, high = comparison(story, story.prediction)
        sure = "" if np.isnan(low) else f" [{low:.3f}, {high:.3f}]"
        against = (
            f"{actual:.3f} came, {actual / predicted - 1:+.1%}; law {story.prediction.law}{sure}"
        )
        figures.insert(
            1, KeyFigure("Predicted loss", f"{predicted:.3f}", "nats per token", against)
        )
    return tuple(figures)


def _events(story: RunStory) -> Table:
    told = [event for event in story.events if event["event"] not in ORDINARY]
    began = told[0]["time"] if told else 0.0
    rows = tuple(
        (
            duration(max(0.0, event["time"] - began)),
            event["event"].replace("_", " "),
            event.get("attempt"),
            event.get("step"),
            _details(event),
        )
        for event in told[-EVENTS_SHOWN:]
    )
    some = f", the last {len(rows)} of {len(told):,}" if len(rows) < len(told) else ""
    caption = f"Events, but for what is as usual{some}; events.jsonl has all"
    return Table(caption, ("after", "event", "attempt", "step", "details"), rows)


def _details(event: Mapping[str, Any]) -> str:
    told = {k: v for k, v in event.items() if k not in COMMON and v is not None}
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in told.items())


def _commands(story: RunStory) -> tuple[report.Command, ...]:
    if story.updates[-1]["step"] < story.steps:
        go_on = f"trainrig {story.verb} {story.folder}/{RUN_FILE}"
        return (report.Command(go_on, "Go on from the newest checkpoint"),)
    return (
        report.Command(f"trainrig generate {story.folder} --prompt TEXT", "Let it write"),
        report.Command(f"trainrig export {story.folder} OUT", "Give it to Transformers"),
    )


def _provenance(story: RunStory) -> dict[str, dict[str, str]]:
    numerics = [event["found"] for event in story.events if event["event"] == "numerics"]
    where = {"folder": story.folder, "run file": RUN_FILE, "figures": metrics.METRICS}
    machine = {"Machine": {k: str(v) for k, v in numerics[-1].items()}} if numerics else {}
    return {"Files": where, **machine}
