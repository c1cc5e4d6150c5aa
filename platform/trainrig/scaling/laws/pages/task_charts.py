"""Charts of task scores over compute, for a fit's report page."""

from functools import partial

import numpy as np

from trainrig import figures
from trainrig.report import Chart, ReportTable, Text
from trainrig.scaling.laws.figure_format import format_interval
from trainrig.scaling.laws.fit import Fitted
from trainrig.scaling.laws.law import TaskLaw, refuse_draws
from trainrig.scaling.laws.pages.law_views import BEYOND, COMPUTES, LEVEL, format_power
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.plots.frontier import Band
from trainrig.scaling.plots.task_scores import ScoredRuns, plot_task_scores


def build_task_blocks(fitted: Fitted) -> tuple[Text | Chart, ...]:
    """Build a chart for each task law, and a text for each task without one."""
    charts = (_chart_task(task, fitted.runs) for task in fitted.law.tasks)
    refused = (Text(f"{name}: no law: {why}.") for name, why in fitted.law.tasks_refused.items())
    return (*charts, *refused)


def _chart_task(task: TaskLaw, runs: RunsTable) -> Chart:
    asked = runs.select(~np.isnan(runs.task_scores[task.task]))
    flops = asked.flops_6nd
    scores = asked.task_scores[task.task]
    losses = asked.task_losses[task.task]
    form = task.form
    line = np.geomspace(flops.min(), flops.max() * BEYOND, COMPUTES)
    band = Band(line, form.compute_score(line))
    if not refuse_draws(len(task.draws), task.draws_failed):
        tails = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
        band = Band(line, band.value, *np.quantile(task.drawn.compute_score(line), tails, axis=0))
    ask = 10 * float(flops.max())
    rows = zip(
        asked.name.tolist(), map(format_power, flops), losses.tolist(), scores.tolist(),
        form.compute_score(flops).tolist(), strict=True,
    )  # fmt: skip
    return Chart(
        f"{task.task}: expected score {float(form.compute_score(ask)):.3f} "
        f"{format_interval(task.compute_interval(ask))} at {format_power(ask)} FLOPs, 10 times "
        "the largest run",
        figures.draw(
            partial(
                plot_task_scores,
                law=band,
                runs=ScoredRuns(flops, scores, asked.task_errors[task.task]),
                chance=form.chance,
            ),
            300,
        ),
        label=f"Score of {task.task} against compute, with the law and its band.",
        caption=f"n = {task.runs} runs, with standard errors of their scores. The loss of right "
        f"answers is {form.E:.3g} + {form.A:.3g} "
        f"(C/{format_power(form.unit)})^-{form.alpha:.3g} nats per byte. The score is "
        f"half-way from chance to 1 at a loss of {form.middle:.3g}. The band contains "
        f"{LEVEL:.0%} of {len(task.draws):,} bootstrap draws of the expected score.",
        table=ReportTable(
            "Runs",
            ("run", "FLOPs", "loss of right answers, nats per byte", "score", "predicted score"),
            tuple(rows),
        ),
    )
