"""The report of a run, `report.html`: losses, speed, failures, and where the time went.

It is built from the run folder alone, so it can be requested while the run goes on.
"""

import contextlib
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from trainrig import report, storage
from trainrig.errors import DataError
from trainrig.objectives.denoising.mixture import MixtureBase
from trainrig.objectives.objective_kinds import find_kind
from trainrig.report import (
    Block,
    KeyFigure,
    ReportTable,
    Section,
    format_duration,
    format_percent,
    format_short,
)
from trainrig.storage.writable import check_folder
from trainrig.train.evaluations import read_views
from trainrig.train.run import metrics
from trainrig.train.run.checkpoint_scores import read_end, read_usable_scores
from trainrig.train.run.loss_prediction import read_prediction
from trainrig.train.run.progress import account_time
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_report import objective_charts, outcome_charts, run_charts, sampled_answers
from trainrig.train.run_report.rollout_charts import build_rollout_charts, measure_answer_worth
from trainrig.train.run_report.signal_charts import build_signal_charts

PAGE = "report.html"
RUN_FILE = "run.toml"
EVENTS_SHOWN = 200
ALARMS_SHOWN = 5
FIRST_ROWS = "the answers of some checkpoints to the first rows of the tasks, as they were scored"
FIRST_DRAWN = (
    "the first completions of the batches above, for prompts that occur in several of them"
)
# Events that the table leaves out: events of single workers and of normal operation.
ORDINARY = {
    *("worker_started", "first_step", "checkpoint", "numerics"),
    *("evaluation_started", "evaluated"),
}
# shown as columns, or not informative here
COMMON = {"event", "time", "pid", "host", "attempt", "step"}


def write_report(folder: str) -> str:
    """Write the report of the run in `folder`, and return its path.

    Raises DataError for a folder without a run, or a run without an update.
    """
    path = storage.join(folder, PAGE)
    run_data = read_report_data(folder)
    check_folder(folder)
    storage.write(path, build_run_page(run_data).encode())
    return path


@contextlib.contextmanager
def report_at_end(folder: str) -> Iterator[None]:
    """Write the report of a run after the block that drives it, however the block ends."""
    try:
        yield
    finally:
        if metrics.read_series(folder):
            write_report(folder)


def read_report_data(folder: str) -> run_charts.RunReportData:
    """Read what the report needs from the run in `folder`.

    Raises DataError if the folder has no run, or the run has no update.
    """
    file = storage.join(folder, RUN_FILE)
    if not storage.exists(file):
        raise DataError(
            f"{folder}: no {RUN_FILE}; name the folder of a run of pretrain, posttrain or rl"
        )
    lines = list(metrics.read_lines(folder))
    if not lines:
        raise DataError(f"{folder}: the run has no update yet, so there is nothing to report")
    run = tomllib.loads(storage.read(file).decode())
    named = [evaluation["name"] for evaluation in run["training"].get("evaluations", ())]
    scores = [read_usable_scores(RunFolder(folder), name) for name in named]
    events = list(RunFolder(folder).read_events())
    updates = metrics.read_series(folder)
    counted = {line["step"]: line["attempt"] for line in updates}
    thrown: dict[int, list[run_charts.Line]] = {}
    for line in lines:
        if line["attempt"] < counted[line["step"]]:
            thrown.setdefault(line["attempt"], []).append(line)
    return run_charts.RunReportData(
        folder=folder,
        verb=run["stage"],
        steps=run["training"]["steps"],
        updates=updates,
        thrown_away=list(thrown.values()),
        held_out=metrics.read_held_out_series(folder),
        events=events,
        goodput=account_time(events, lines),
        prediction=read_prediction(folder),
        evaluated=[scored for scored in scores if scored],
        followed={
            scored[-1].evaluation: sampled_answers.read_followed(RunFolder(folder), scored)
            for scored in scores
            if scored
        },
        end=read_end(RunFolder(folder)),
        objective=run.get("objective", {}).get("kind", ""),
        compared=read_views(folder),
        answers=sampled_answers.read_answers(RunFolder(folder)),
        measured=[part["name"] for part in run.get("rewards", ()) if part["weight"] == 0],
    )


def build_run_page(run_data: run_charts.RunReportData) -> str:
    """Build the page as HTML."""
    charts = [run_charts.build_loss_chart(run_data)]
    if run_data.prediction:
        charts.append(outcome_charts.build_prediction_chart(run_data, run_data.prediction))
    if run_data.held_out:
        charts.append(run_charts.build_sources_chart(run_data))
        if run_data.held_out[0]["step"] == 0 and len(run_data.held_out) > 1:
            charts.append(run_charts.build_forgetting_chart(run_data))
    objective = find_kind(run_data.objective)
    if (
        objective
        and issubclass(objective, MixtureBase)
        and (members := objective_charts.build_members_chart(run_data))
    ):
        charts.append(members)
    sections = [Section("loss", "Loss", tuple(charts))]
    if rollouts := build_rollout_charts(run_data):  # at the top: a policy's loss says little
        said = sampled_answers.build_answer_samples(run_data.answers, run_data.measured)
        again = sampled_answers.build_followed_prompts(
            sampled_answers.follow_prompts(run_data.answers), FIRST_DRAWN
        )
        blocks = (*rollouts, *said, *again)
        sections.insert(0, Section("rollouts", "Rewards of completions", blocks))
    if preferences := objective_charts.build_preference_charts(run_data):
        sections.append(Section("preferences", "Preferences", tuple(preferences)))
    if labelled := objective_charts.build_labelling_charts(run_data):
        sections.append(Section("labels", "Accuracy", tuple(labelled)))
    if compared := outcome_charts.build_comparison_section(run_data.compared):
        sections.append(compared)
    if run_data.evaluated:
        drawn: list[Block] = []
        for scored in run_data.evaluated:
            followed = run_data.followed.get(scored[-1].evaluation, ())
            drawn += [
                outcome_charts.build_score_chart(scored),
                *sampled_answers.build_followed_prompts(followed, FIRST_ROWS),
            ]
        sections.append(Section("scores", "Benchmark scores", tuple(drawn)))
    steady = (run_charts.build_gradient_chart(run_data), run_charts.build_rate_chart(run_data))
    sections.append(Section("steadiness", "Training stability", steady))
    if signals := build_signal_charts(run_data):
        sections.append(Section("signals", "Sampled measurements", tuple(signals)))
    speed = (
        run_charts.build_speed_chart(run_data),
        *((run_charts.build_goodput_chart(run_data.goodput),) if run_data.goodput.wall else ()),
    )
    sections.append(Section("time", "Where the time went", speed))
    sections.append(Section("events", "Events", (_build_events(run_data),)))
    page = report.ReportPage(
        title=f"{run_data.verb.capitalize()} run",
        verdict=_build_verdict(run_data),
        figures=_build_key_figures(run_data),
        sections=tuple(sections),
        commands=_list_commands(run_data),
        provenance=_collect_provenance(run_data),
    )
    return page.render_html()


def _build_verdict(run_data: run_charts.RunReportData) -> report.Verdict:
    done = run_data.updates[-1]["step"]
    warnings = []
    skipped = [event for event in run_data.events if event["event"] == "step_skipped"]
    if skipped:
        warnings.append(
            f"{len(skipped)} global "
            f"{'batch was' if len(skipped) == 1 else 'batches were'} skipped without an "
            "update; see the events."
        )
    warnings += [_describe_spike(event) for event in run_data.events if event["event"] == "spike"]
    alarms = [event for event in run_data.events if event["event"] == "alarm"]
    warnings += [f"Alarm: {alarm['what']}. {alarm['action']}." for alarm in alarms[-ALARMS_SHOWN:]]
    if any(event["event"] == "numerics_changed" for event in run_data.events):
        warnings.append(
            "The machine or libraries changed during the run, so results may not be bit-identical."
        )
    failed = [event for event in run_data.events if event["event"] == "evaluation_failed"]
    warnings += [f"Step {e['step']:,} could not be scored: {e['problem']}." for e in failed[-1:]]
    if done < run_data.last_step:
        warnings.append("The run has not reached its last step. Run the same command to continue.")
    what = "held-out loss" if run_data.held_out else "loss"
    lines, name = (
        (run_data.held_out, "eval/loss") if run_data.held_out else (run_data.updates, "train/loss")
    )
    loss = run_charts.list_values(lines, name)[-1]
    measure = f"{what} {loss:.3f} {run_data.unit}"
    if worth := measure_answer_worth(run_data):  # a policy's loss says little
        name, last, first = worth
        measure = f"{name} {last:.3g}, at first {first:.3g}"
    sentence = f"{done:,} of {run_data.steps:,} steps; {measure}."
    if run_data.end and done >= run_data.end.step:
        sentence += f" Its scores ended it: {run_data.end.why}."
    state: Literal["done", "warning"] = "warning" if warnings else "done"
    return report.Verdict(sentence, state, tuple(warnings))


def _describe_spike(spike: run_charts.Line) -> str:
    (begin, end) = spike["skip"]
    back_to = spike["back_to"]
    done = "its outliers were skipped"
    if back_to is not None:
        done = f"returned to step {back_to:,} and skipped the data steps {begin:,} to {end - 1:,}"
    return f"Spike after step {spike['step']:,}: {done}."


def _build_key_figures(run_data: run_charts.RunReportData) -> tuple[KeyFigure, ...]:
    losses = run_charts.list_values(run_data.updates, "train/loss")
    speeds = run_charts.list_values(run_data.updates, "speed/tokens_per_second")
    last = run_data.updates[-1]
    figures = [
        KeyFigure("Training loss", f"{losses[-1]:.3f}", run_data.unit, f"{losses[0]:.3f} at first"),
        KeyFigure(
            "Trained on", format_short(last["train/tokens"]), "tokens", f"{last['step']:,} steps"
        ),
        KeyFigure(
            "Speed",
            format_short(float(np.median(speeds))),
            "tokens/s",
            _describe_speed(run_data),
        ),
        KeyFigure(
            "Goodput",
            format_percent(run_data.goodput.share, 1),
            "",
            f"of {format_duration(run_data.goodput.wall)}, {len(run_data.moves) + 1} "
            f"{'attempt' if not run_data.moves else 'attempts'}",
        ),
    ]
    if run_data.held_out:
        held_out = run_charts.list_values(run_data.held_out, "eval/loss")
        first = f"{held_out[0]:.3f} at step {run_data.held_out[0]['step']:,}"
        figures.insert(0, KeyFigure("Held-out loss", f"{held_out[-1]:.3f}", run_data.unit, first))
    if worth := measure_answer_worth(run_data):
        name, end, start = worth
        figures[0] = KeyFigure(name.capitalize(), f"{end:.3g}", "", f"{start:.3g} at first")
    if run_data.prediction:
        actual, predicted, low, high = outcome_charts.compare_prediction(
            run_data, run_data.prediction
        )
        sure = "" if np.isnan(low) else f" [{low:.3f}, {high:.3f}]"
        against = (
            f"{actual:.3f} measured, {actual / predicted - 1:+.1%}; law "
            f"{run_data.prediction.law}{sure}"
        )
        figures.insert(1, KeyFigure("Predicted loss", f"{predicted:.3f}", run_data.unit, against))
    return tuple(figures)


def _describe_speed(run_data: run_charts.RunReportData) -> str:
    """Describe the step time, the throughput per worker, and MFU, as medians.

    Held-out losses and saves are not part of a step's time.
    """
    seconds = run_charts.list_values(run_data.updates, "speed/step_seconds")
    workers = run_charts.list_values(run_data.updates, "cluster/workers")
    per_worker = np.median(
        run_charts.list_values(run_data.updates, "speed/tokens_per_second") / workers
    )
    note = (
        f"medians: {np.median(seconds):.3g} s per step, {format_short(float(per_worker))} "
        "tokens/s per worker"
    )
    if shares := [line["speed/mfu"] for line in run_data.updates if line.get("speed/mfu")]:
        note += f", {format_percent(float(np.median(shares)), 1)} MFU (PaLM's rule, causal)"
    return f"{note}; workers at the end: {workers[-1]:.0f}"


def _build_events(run_data: run_charts.RunReportData) -> ReportTable:
    told = [event for event in run_data.events if event["event"] not in ORDINARY]
    began = told[0]["time"] if told else 0.0
    rows = tuple(
        (
            format_duration(max(0.0, event["time"] - began)),
            event["event"].replace("_", " "),
            event.get("attempt"),
            event.get("step"),
            _format_details(event),
        )
        for event in told[-EVENTS_SHOWN:]
    )
    some = f", the last {len(rows)} of {len(told):,}" if len(rows) < len(told) else ""
    caption = f"Non-routine events{some}; events.jsonl has all"
    return ReportTable(caption, ("after", "event", "attempt", "step", "details"), rows)


def _format_details(event: Mapping[str, Any]) -> str:
    told = {k: v for k, v in event.items() if k not in COMMON and v is not None}
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in told.items())


def _list_commands(run_data: run_charts.RunReportData) -> tuple[report.PageCommand, ...]:
    if run_data.updates[-1]["step"] < run_data.last_step:
        go_on = f"trainrig {run_data.verb} {run_data.folder}/{RUN_FILE}"
        return (report.PageCommand(go_on, "Continue from the newest checkpoint"),)
    if run_data.scores:
        return (
            report.PageCommand("trainrig score RUN.toml", "Score answers with the model"),
            report.PageCommand(f"trainrig export {run_data.folder} OUT", "Export to Transformers"),
        )
    return (
        report.PageCommand(f"trainrig generate {run_data.folder} --prompt TEXT", "Generate text"),
        report.PageCommand(f"trainrig export {run_data.folder} OUT", "Export to Transformers"),
    )


def _collect_provenance(run_data: run_charts.RunReportData) -> dict[str, dict[str, str]]:
    numerics = [event["found"] for event in run_data.events if event["event"] == "numerics"]
    where = {"folder": run_data.folder, "run file": RUN_FILE, "figures": metrics.METRICS}
    machine = {"Machine": {k: str(v) for k, v in numerics[-1].items()}} if numerics else {}
    return {"Files": where, **machine}
