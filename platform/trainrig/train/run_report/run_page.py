"""The report of a run, `report.html`: losses, speed, failures, and where the time went.

It is built from the run folder alone, so it can be requested while the run goes on.
"""

import contextlib
import tomllib
from collections.abc import Iterator

import numpy as np

from trainrig import storage
from trainrig.errors import DataError
from trainrig.objectives.denoising.mixture import MixtureBase
from trainrig.objectives.objective_kinds import find_kind
from trainrig.processes import lease
from trainrig.report import page_rendering
from trainrig.report.number_formats import format_duration
from trainrig.report.plots import ChartFacts
from trainrig.storage.missing_folders import describe_origin, is_missing
from trainrig.storage.writable import check_folder
from trainrig.train.evaluations import read_views
from trainrig.train.run import metrics
from trainrig.train.run.checkpoint_scores import read_end, read_usable_scores
from trainrig.train.run.planned_loss import read_prediction
from trainrig.train.run.progress import ProgressFollower, account_time
from trainrig.train.run.run_folder import REPORT, RunFolder
from trainrig.train.run_report import objective_charts, outcome_charts, run_charts, sampled_answers
from trainrig.train.run_report.rollout_charts import draw_rollouts, measure_answer_worth
from trainrig.train.run_report.run_charts import list_values
from trainrig.train.run_report.signal_charts import draw_signals

RUN_FILE = "run.toml"
EVENTS_SHOWN = 200
ALARMS_SHOWN = 5
TOKENS_A_SECOND = "train/tokens_per_second"
# Events that the table leaves out: events of single workers and of normal operation.
ORDINARY = {
    *("worker_started", "first_step", "checkpoint", "numerics"),
    *("evaluation_started", "evaluated"),
}
# shown as columns, or not informative here
COMMON = {"event", "time", "pid", "host", "attempt", "step"}


def write_report(folder: str, live: bool = True) -> str:
    """Write the report of the run in `folder`, and return its path.

    With `live`, a run that a driver still holds is reported as running.
    Raises DataError for a folder without a run, or a run without an update.
    """
    path = storage.join(folder, REPORT)
    run_data = read_report_data(folder, live=live)
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
            write_report(folder, live=False)  # this process still holds the folder


def read_report_data(folder: str, live: bool = True) -> run_charts.RunReportData:
    """Read what the report needs from the run in `folder`.

    Raises DataError if the folder has no run, or the run has no update.
    """
    file = storage.join(folder, RUN_FILE)
    if not storage.exists(file):
        if is_missing(folder):
            raise DataError(f"{folder}: no such folder{describe_origin(folder)}")
        raise DataError(
            f"{folder}: no {RUN_FILE}; name the folder of a run of pretrain, posttrain or rl"
        )
    lines = list(metrics.read_lines(folder))
    if not lines:
        raise DataError(f"{folder}: the run has no update yet, so there is nothing to report")
    run = tomllib.loads(storage.read(file).decode())
    steps = run["training"]["steps"]
    named = [evaluation["name"] for evaluation in run["training"].get("evaluations", ())]
    scores = [read_usable_scores(RunFolder(folder), name) for name in named]
    events = list(RunFolder(folder).read_events())
    updates = metrics.read_series(folder)
    running = live and lease.is_held(folder)
    counted = {line["step"]: line["attempt"] for line in updates}
    thrown: dict[int, list[run_charts.MetricsLine]] = {}
    for line in lines:
        if line["attempt"] < counted[line["step"]]:
            thrown.setdefault(line["attempt"], []).append(line)
    return run_charts.RunReportData(
        folder=folder,
        verb=run["stage"],
        steps=steps,
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
        running=running,
        seconds_left=_estimate_seconds_left(folder, steps) if running else None,
    )


def _estimate_seconds_left(folder: str, steps: int) -> float | None:
    """Return the remaining seconds at the pace of the last updates; None: waits, or unknown."""
    progress = ProgressFollower(folder, steps).look()
    return progress.seconds_left if progress and progress.waiting is None else None


def build_run_page(run_data: run_charts.RunReportData) -> str:
    """Build the page as HTML."""
    updates = run_data.updates
    held_out = run_data.held_out
    charts: dict[str, ChartFacts] = {"loss": run_charts.draw_loss(run_data)}
    if run_data.prediction:
        charts["prediction"] = outcome_charts.draw_prediction(run_data, run_data.prediction)
    if held_out:
        charts["sources"] = run_charts.draw_sources(run_data)
    if len(held_out) > 1 and held_out[0]["step"] == 0:
        charts["forgetting"] = run_charts.draw_forgetting(run_data)
    objective = find_kind(run_data.objective)
    if objective and issubclass(objective, MixtureBase):
        charts["members"] = objective_charts.draw_members(run_data)
    charts["gradient"] = run_charts.draw_metric(run_data, "train/grad_norm", "gradient norm")
    charts["rate"] = run_charts.draw_metric(run_data, "train/lr", "learning rate", smoothed=False)
    charts["speed"] = run_charts.draw_metric(run_data, TOKENS_A_SECOND, "tokens per second")
    charts["goodput"] = run_charts.draw_goodput(run_data.goodput) if run_data.goodput.wall else {}
    warnings = _list_warnings(run_data)
    told = [event for event in run_data.events if event["event"] not in ORDINARY]
    return page_rendering.render_page(
        __name__,
        run=run_data,
        warnings=warnings,
        **({"state": "running"} if run_data.running else {}),
        worth=measure_answer_worth(run_data),  # a policy's loss says little
        losses=list_values(updates, "train/loss"),
        held_out=list_values(held_out, "eval/loss"),
        speed=_measure_speed(run_data),
        gradient=_measure_gradient(run_data),
        charts={name: chart for name, chart in charts.items() if chart},
        rollouts=draw_rollouts(run_data),
        drawn_again=sampled_answers.follow_prompts(run_data.answers),
        preferences=objective_charts.draw_preferences(run_data),
        labels=objective_charts.draw_labels(run_data),
        comparison=outcome_charts.draw_comparison(run_data.compared),
        scores=[outcome_charts.draw_scores(scored) for scored in run_data.evaluated],
        signals=draw_signals(run_data),
        events=[_list_event_cells(event, told[0]["time"]) for event in told[-EVENTS_SHOWN:]],
        all_events=len(told),
        numerics=[e["found"] for e in run_data.events if e["event"] == "numerics"],
        run_file=RUN_FILE,
        metrics_file=metrics.METRICS,
    )


def _list_warnings(run_data: run_charts.RunReportData) -> list[str]:
    """Return the warnings of the verdict; the last is for a run that is not over."""
    by_kind: dict[str, list[run_charts.MetricsLine]] = {}
    for event in run_data.events:
        by_kind.setdefault(event["event"], []).append(event)
    warnings = []
    if skipped := len(by_kind.get("step_skipped", ())):
        batches = "batch was" if skipped == 1 else "batches were"
        warnings.append(f"{skipped} global {batches} skipped without an update; see the events.")
    warnings += [_describe_spike(event) for event in by_kind.get("spike", ())]
    alarms = by_kind.get("alarm", [])[-ALARMS_SHOWN:]
    warnings += [f"Alarm: {alarm['what']}. {alarm['action']}." for alarm in alarms]
    if "numerics_changed" in by_kind:
        warnings.append(
            "The machine or libraries changed during the run, so results may not be bit-identical."
        )
    for failed in by_kind.get("evaluation_failed", [])[-1:]:
        warnings.append(f"Step {failed['step']:,} could not be scored: {failed['problem']}.")
    if run_data.updates[-1]["step"] < run_data.last_step and not run_data.running:
        warnings.append("The run has not reached its last step. Run the same command to continue.")
    return warnings


def _describe_spike(spike: run_charts.MetricsLine) -> str:
    (begin, end) = spike["skip"]
    back_to = spike["back_to"]
    done = "its outliers were skipped"
    if back_to is not None:
        done = f"returned to step {back_to:,} and skipped the data steps {begin:,} to {end - 1:,}"
    return f"Spike after step {spike['step']:,}: {done}."


def _measure_speed(run_data: run_charts.RunReportData) -> dict[str, float | None]:
    """Return medians of the throughput, of the step time and of MFU, and the workers at the end.

    Held-out losses and saves are not part of a step's time.
    """
    speeds = list_values(run_data.updates, TOKENS_A_SECOND)
    workers = list_values(run_data.updates, "cluster/workers")
    shares = [line["train/mfu"] for line in run_data.updates if line.get("train/mfu")]
    return {
        "tokens": float(np.median(speeds)),
        "a_worker": float(np.median(speeds / workers)),
        "seconds": float(np.median(list_values(run_data.updates, "train/step_seconds"))),
        "mfu": float(np.median(shares)) if shares else None,
        "workers": workers[-1],
    }


def _measure_gradient(run_data: run_charts.RunReportData) -> dict[str, float]:
    norms = list_values(run_data.updates, "train/grad_norm")
    step = run_data.updates[int(np.nanargmax(norms))]["step"]
    return {"median": float(np.nanmedian(norms)), "most": float(np.nanmax(norms)), "step": step}


def _list_event_cells(event: run_charts.MetricsLine, began: float) -> tuple[object, ...]:
    told = {k: v for k, v in event.items() if k not in COMMON and v is not None}
    return (
        format_duration(max(0.0, event["time"] - began)),
        event["event"].replace("_", " "),
        event.get("attempt"),
        event.get("step"),
        ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in told.items()),
    )
