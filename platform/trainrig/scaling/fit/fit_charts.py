"""Charts of a fit's report page; its template words their findings."""

import operator
from collections.abc import Sequence

import numpy as np

from trainrig.report import plots
from trainrig.report.number_formats import format_short
from trainrig.report.plots import ChartFacts, Line
from trainrig.scaling import law_plots
from trainrig.scaling.law_plots import format_power
from trainrig.scaling.laws.law import Law, TaskLaw, refuse_draws
from trainrig.scaling.laws.law_forms import Array
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.foretelling import predict
from trainrig.scaling.regression.hoffmann import (
    LEAST_SIZES,
    EnvelopeFit,
    IsoFlop,
    IsoFlopFit,
    group_by_budget,
)
from trainrig.scaling.regression.profile_likelihood import Profile
from trainrig.scaling.regression.regression import find_levels

LEAST_APART = 0.05  # least distance between the names of two budgets, as a share of the height
ROOM_FOR_NAMES = 1.6  # factor beyond the largest size, to leave space for the names of budgets


def _tabulate(columns: Sequence[str], rows: Sequence[plots.Row]) -> ChartFacts:
    cut, chosen = law_plots.cut_rows(rows)
    return {"columns": columns, "rows": chosen, "cut": cut}


def draw_law_agreement(law: Law, runs: RunsTable) -> ChartFacts:
    """Draw predicted over measured loss, with held-out runs predicted by the fit without them."""
    predicted = predict(law.form, runs)
    kept = law.held_out.rows if law.held_out else ()
    held = (np.array([row.predicted for row in kept]), np.array([row.loss for row in kept]))
    error = np.abs(predicted / runs.loss - 1)
    values = (runs.name.tolist(), runs.parameters, runs.tokens, runs.loss, predicted)
    columns = ("run", "parameters", "tokens", "measured", "predicted")
    return _tabulate(columns, list(zip(*values, strict=True))) | {
        "plot": law_plots.draw_agreement(predicted, runs.loss, held if law.held_out else None),
        "median": np.median(error),
        "largest": error.max(),
        "runs": len(runs),
    }


def draw_residuals(law: Law, runs: RunsTable) -> dict[str, ChartFacts]:
    """Draw the errors over parameters and over tokens, by the name of these."""
    error = predict(law.form, runs) / runs.loss - 1
    kept = law.held_out.rows if law.held_out else ()
    held_error = [row.error for row in kept]
    sides = {
        "parameters": (runs.parameters, [row.parameters for row in kept]),
        "tokens": (runs.tokens, [row.tokens for row in kept]),
    }
    return {
        unit: _draw_residual(unit, (sizes, error), (held, held_error))
        for unit, (sizes, held) in sides.items()
    }


def _draw_residual(
    unit: str, fitted: tuple[Array, Array], held_out: tuple[list[float], list[float]]
) -> ChartFacts:
    sizes, errors = fitted
    least, most = np.quantile(sizes, (0.2, 0.8))
    marks: list[plots.Mark] = [
        plots.Rule(0, colour="grid", style="-", width=1.5),
        Line(sizes, errors, "fitted", style="o", size=4, opacity=0.6),
    ]
    if held_out[0]:
        marks.append(Line(*held_out, "held out", "c2", "D", size=6, hollow=True))
    y = plots.Axis("predicted above measured", "percent")
    rows = list(zip(sizes.tolist(), (100 * errors).tolist(), strict=True))
    return _tabulate((unit, "predicted above measured, %"), rows) | {
        "plot": plots.Plot(marks, plots.Axis(unit, log=True), y),
        "few": errors[sizes <= least].mean(),
        "many": errors[sizes >= most].mean(),
        "runs": len(sizes),
    }


def draw_optima(
    law: Law, isoflop: IsoFlopFit | None, envelope: EnvelopeFit | None
) -> dict[str, ChartFacts]:
    """Draw N* and D* over compute, by the law with its interval and by the other approaches."""
    assert law.ranges is not None  # a fitted law has ranges
    span = law.ranges.flops
    flops = law_plots.space_computes(law)
    charts = {}
    for quantity in ("parameters", "tokens"):
        found = law_plots.compute_band(law, flops, operator.attrgetter(quantity))
        marks = found.draw()
        marks.append(plots.Span(span.least, span.greatest, "compute of the runs"))
        marks += _draw_other_ways(flops, isoflop, envelope, quantity)
        ends = (found.low, found.high)
        rows = [
            (
                format_power(flops[i], 3),
                format_short(found.value[i]),
                *(None if end is None else format_short(end[i]) for end in ends),
            )
            for i in plots.choose_evenly(len(flops), 16)
        ]
        y = plots.Axis(f"compute-optimal {quantity}", log=True)
        charts[quantity] = _tabulate(("FLOPs", quantity, "low", "high"), rows) | {
            "plot": plots.Plot(marks, law_plots.COMPUTE, y, height=300),
            "slope": np.log(found.value[-1] / found.value[0]) / np.log(flops[-1] / flops[0]),
            "banded": found.low is not None,
        }
    return charts


def _draw_other_ways(
    flops: Array, isoflop: IsoFlopFit | None, envelope: EnvelopeFit | None, quantity: str
) -> list[Line]:
    found = []
    if isoflop is not None:
        law = getattr(isoflop, quantity)
        by_law = law.coefficient * flops**law.exponent
        at = [bowl.flops for bowl in isoflop.bowls]
        lowest = [getattr(bowl, quantity) for bowl in isoflop.bowls]
        found.append(Line(flops, by_law, "parabolas", "c2", "--", width=1.5))
        found.append(Line(at, lowest, "minima of the parabolas", "c3", "o", size=4))
    if envelope is not None:
        law = getattr(envelope, quantity)
        by_law = law.coefficient * flops**law.exponent
        found.append(Line(flops, by_law, "envelope", "c4", "--", width=1.5))
    return found


def draw_loss_contours(law: Law, runs: RunsTable) -> ChartFacts:
    """Draw the loss over parameters and tokens, with the runs and the optimum at each compute."""
    assert law.ranges is not None  # a fitted law has ranges
    wide = 3.0  # factor by which the chart extends the range of the runs, on either side
    sizes = law.ranges.parameters
    seen = law.ranges.tokens
    ends = (sizes.least / wide, sizes.greatest * wide), (seen.least / wide, seen.greatest * wide)
    flops = law_plots.space_computes(law)
    best = law.form.compute_optimum(flops)
    ratios = runs.tokens / runs.parameters
    shown = Line(runs.parameters, runs.tokens, "runs", style="o", size=3.5)
    surface = law_plots.compute_surface(law.form, *ends)
    columns = ("FLOPs", "parameters", "tokens", "loss (nats per token)")
    rows = [
        (
            format_power(flops[i], 3),
            format_short(best.parameters[i]),
            format_short(best.tokens[i]),
            best.loss[i],
        )
        for i in range(0, len(flops), 5)
    ]
    return _tabulate(columns, rows) | {
        "plot": law_plots.draw_contours(surface, (best.parameters, best.tokens), shown),
        "ratios": (ratios.min(), ratios.max()),
        "runs": len(runs),
    }


def draw_isoflops(runs: RunsTable, fit: IsoFlopFit, settings: IsoFlop) -> ChartFacts:
    """Draw the losses of each budget in one colour, with their parabola and its lowest point.

    Budgets with too few sizes for a parabola are left out, as they are from the fit.
    """
    by_rows = {bowl.budget: bowl for bowl in fit.bowls}
    groups = [
        (rows, by_rows.get(tuple(int(row) for row in rows)))
        for rows in group_by_budget(runs, settings)
        if len(find_levels(runs.parameters[rows])) >= LEAST_SIZES
    ]
    groups.sort(key=lambda group: float(np.median(runs.flops_6nd[group[0]])))
    marks: list[plots.Mark] = []
    minima = []
    ends = []
    for number, (rows, bowl) in enumerate(groups):
        flops = float(np.median(runs.flops_6nd[rows]))
        colour = plots.SERIES[number % len(plots.SERIES)]
        order = rows[np.argsort(runs.parameters[rows], kind="stable")]
        sizes = runs.parameters[order]
        losses = runs.loss[order]
        ends.append((float(sizes[-1]), float(losses[-1]), flops))
        marks.append(Line(sizes, losses, colour=colour, style="o", size=4))
        if bowl is None:
            marks.append(Line(sizes, losses, colour=colour, style=":", width=1.2))
            continue
        along = np.geomspace(sizes[0], sizes[-1], 60)
        curve = bowl.loss + bowl.curvature * np.log(along / bowl.parameters) ** 2
        lowest = Line([bowl.parameters], [bowl.loss], colour="ink", style="D", on_top=True)
        marks += [Line(along, curve, colour=colour, width=1.6), lowest]
        minima.append((format_power(flops, 3), format_short(bowl.parameters), bowl.loss))
    drawn = np.concatenate([rows for rows, _ in groups])
    x = plots.Axis(
        "parameters",
        log=True,
        low=runs.parameters[drawn].min() / 1.2,
        high=runs.parameters[drawn].max() * ROOM_FOR_NAMES,
    )
    marks += _name_budgets(ends, LEAST_APART * float(np.ptp(np.log(runs.loss[drawn]))))
    return _tabulate(("FLOPs", "parameters", "loss (nats per token)"), minima) | {
        "plot": plots.Plot(marks, x, law_plots.LOSS, height=320),
        "budgets": len(groups),
        "minima": len(minima),
        "runs": len(drawn),
    }


def _name_budgets(ends: Sequence[tuple[float, float, float]], apart: float) -> list[plots.Note]:
    """Write each budget beside its largest size, unless another name is near.

    `ends` have parameters, loss and FLOPs; `apart` is the least distance in log loss.
    """
    notes = []
    last = np.inf
    for size, loss, flops in sorted(ends, key=lambda end: -end[1]):
        if last - np.log(loss) >= apart:
            last = np.log(loss)
            notes.append(plots.Note(size, loss, f"{flops:.0e}".replace("e+", "e"), dx=6))
    return notes


def draw_envelope(along: RunsTable, fit: EnvelopeFit | None) -> ChartFacts:
    """Draw every training curve, and in bold the least loss at each compute."""
    marks = []
    for trial in dict.fromkeys(along.trial.tolist()):
        rows = np.flatnonzero(along.trial == trial)
        order = rows[np.argsort(along.flops_6nd[rows], kind="stable")]
        style = "." if len(order) == 1 else "-"
        marks.append(
            Line(along.flops_6nd[order], along.loss[order], style=style, width=1, opacity=0.5)
        )
    curves = len(marks)
    if fit is not None:
        marks.append(Line(fit.flops, fit.loss, "lowest at each compute", "c2", width=2.4))
    names = along.trial.tolist()
    flops = [format_power(c, 3) for c in along.flops_6nd]
    points = list(zip(names, flops, along.loss.tolist(), strict=True))
    return _tabulate(("run", "FLOPs", "loss (nats per token)"), points) | {
        "plot": plots.Plot(marks, law_plots.COMPUTE, law_plots.LOSS, height=300),
        "curves": curves,
        "sizes": None if fit is None else len(np.unique(fit.best)),
        "points": len(along),
    }


def draw_profile(name: str, profile: Profile) -> ChartFacts:
    """Draw how the objective rises as the constant `name` is moved from its best value."""
    interval = profile.interval
    rises = profile.rises / profile.cutoff
    ends = [end for end in (interval.low, interval.high) if end is not None]
    marks: list[plots.Mark] = [
        Line(profile.values, rises, width=2),
        plots.Rule(1),
        Line([profile.best], [0], colour="c2", style="D", size=6),
        Line(ends, np.ones(len(ends)), colour="c2", style="|", size=14),
    ]
    y = plots.Axis("rise of the objective (95% at 1)", low=-0.15, high=3)
    rows = list(zip(profile.values.tolist(), rises.tolist(), strict=True))
    return _tabulate((name, "rise (1 at the ends of the interval)"), rows) | {
        "plot": plots.Plot(marks, plots.Axis(name), y, height=200),
        "low": "no bound below" if interval.low is None else f"from {interval.low:.4g}",
        "high": "no bound above" if interval.high is None else f"to {interval.high:.4g}",
    }


def draw_task(task: TaskLaw, runs: RunsTable) -> ChartFacts:
    """Draw the scores of the runs on a task with the task's law, and the score of guessing."""
    asked = runs.select(~np.isnan(runs.task_scores[task.task]))
    flops = asked.flops_6nd
    scores = asked.task_scores[task.task]
    form = task.form
    line = np.geomspace(flops.min(), flops.max() * law_plots.BEYOND, law_plots.COMPUTES)
    band = law_plots.Band(line, form.compute_score(line))
    if not refuse_draws(len(task.draws), task.draws_failed):
        tails = ((1 - law_plots.LEVEL) / 2, (1 + law_plots.LEVEL) / 2)
        ends = np.quantile(task.drawn.compute_score(line), tails, axis=0)
        band = law_plots.Band(line, band.value, *ends)
    errors = np.nan_to_num(asked.task_errors[task.task]).tolist()
    marks = [
        *band.draw(),
        Line(flops, scores, "runs", "c2", "o", size=4, error=errors),
        plots.Rule(form.chance, name="chance"),
    ]
    ask = 10 * float(flops.max())
    losses = asked.task_losses[task.task].tolist()
    predicted = form.compute_score(flops).tolist()
    values = (asked.name.tolist(), map(format_power, flops), losses, scores.tolist(), predicted)
    columns = ("run", "FLOPs", "loss of right answers, nats per byte", "score", "predicted score")
    return {
        "plot": plots.Plot(marks, law_plots.COMPUTE, plots.Axis("score"), height=300),
        "columns": columns,
        "rows": list(zip(*values, strict=True)),
        "law": task,
        "ask": ask,
        "expected": float(form.compute_score(ask)),
        "interval": task.compute_interval(ask),
    }
