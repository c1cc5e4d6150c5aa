"""Report page (`report.html`) of a comparison of objectives: the best size and tokens of each."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from trainrig import figures, report, storage
from trainrig.report import Chart, KeyFigure, ReportTable, Section, Text
from trainrig.scaling.laws.comparisons.objectives import (
    COMPUTES,
    NOT_COMPARED,
    ObjectiveComparison,
    find_best_division,
)
from trainrig.scaling.laws.figure_format import format_count, format_interval
from trainrig.scaling.laws.fit import LAW_FILE, Fitted
from trainrig.scaling.laws.law import Interval
from trainrig.scaling.laws.objective_names import name_objective
from trainrig.scaling.laws.pages.fit_page import PAGE
from trainrig.scaling.laws.pages.law_views import format_power
from trainrig.scaling.plots.objectives import COLOURS, BestOf, plot_objectives


def write_objectives_page(folder: str, found: ObjectiveComparison, fits: Sequence[Fitted]) -> str:
    """Write the comparison's `report.html` to `folder`, and return the path."""
    path = storage.join(folder, PAGE)
    page = report.ReportPage(
        title=f"Objectives on equal compute: {', '.join(each.name for each in found.objectives)}",
        verdict=report.Verdict(_format_sentence(found), "done", ()),
        figures=_build_key_figures(found),
        sections=(
            Section("best", "What is best for one compute", _build_best_divisions(found, fits)),
            Section("laws", "The law of each", _build_laws(found)),
        ),
        commands=tuple(
            report.PageCommand(
                f"trainrig plan {storage.join(folder, each.law.name, LAW_FILE)} --flops "
                f"{format_power(found.flops[-1])}",
                f"Plan a run of {each.law.name}; FLOPs are by 6ND there",
            )
            for each in fits
        ),
        provenance={
            "Files": {each.law.name: each.law.source for each in fits},
            "Made by": dict(fits[0].law.made_by),
        },
    )
    storage.write(path, page.render_html().encode())
    return path


def _format_sizes(found: Interval | None) -> str:
    """Format an interval of parameters with the units of sizes."""
    if found is None or found.low is None or found.high is None:
        return format_interval(found)
    return f"{format_count(found.low)} to {format_count(found.high)}"


def _format_sentence(found: ObjectiveComparison) -> str:
    best = "; ".join(
        f"{each.name} {format_count(each.optima[-1].parameters)} parameters on "
        f"{format_count(each.optima[-1].tokens)} tokens"
        for each in found.objectives
    )
    return f"Best at {format_power(found.flops[-1])} FLOPs, each operation counted: {best}."


def _build_key_figures(found: ObjectiveComparison) -> tuple[KeyFigure, ...]:
    """Build the key figures: optima at the greatest compute of the first three objectives."""
    figures = []
    for each in found.objectives[:3]:
        best = each.optima[-1]
        sure = _format_sizes(best.parameters_interval)
        figures += [
            KeyFigure(f"N*, {each.name}", format_count(best.parameters), "parameters", sure),
            KeyFigure(f"D*, {each.name}", format_count(best.tokens), "tokens", ""),
        ]
    return tuple(figures)


def _build_best_divisions(
    found: ObjectiveComparison, fits: Sequence[Fitted]
) -> tuple[Text | Chart | ReportTable, ...]:
    least = max(float(each.runs.flops.min()) for each in fits)
    computes = np.geomspace(least, found.flops[-1], COMPUTES)
    optima = [
        [find_best_division(each.law.form, each.runs, flops) for flops in computes] for each in fits
    ]
    charts = []
    for name, quantity in (("parameters", "parameters, N*"), ("tokens", "tokens of text, D*")):
        curves = [
            BestOf(each.law.name, computes, np.array([getattr(best, name) for best in of]))
            for each, of in zip(fits, optima, strict=True)
        ]
        rows = zip(
            map(format_power, computes), *(curve.best.tolist() for curve in curves), strict=True
        )
        drawn = ", ".join(
            f"{each.name} {each.best[-1] / each.best[0]:.3g} times" for each in curves
        )
        charts.append(
            Chart(
                f"{quantity}: over {computes[-1] / computes[0]:.3g} times the compute {drawn}",
                figures.draw(partial(plot_objectives, objectives=curves, quantity=quantity), 300),
                label=f"{quantity} that is best, against compute, a line for each objective.",
                caption=f"By the law of each, at the compute that all sweeps share, among sizes "
                f"within each sweep's. The first {len(COLOURS)} objectives are drawn.",
                table=ReportTable("Best", ("FLOPs", *(c.name for c in curves)), tuple(rows)),
            )
        )
    table = ReportTable(
        "Best division of one compute",
        ("FLOPs", "objective", "parameters", "95%", "tokens of text", "at an end of its sizes"),
        tuple(
            (
                format_power(flops), each.name, format_count(each.optima[n].parameters),
                _format_sizes(each.optima[n].parameters_interval),
                format_count(each.optima[n].tokens), "yes" if each.optima[n].at_an_end else "no",
            )
            for n, flops in enumerate(found.flops)
            for each in found.objectives
        ),
    )  # fmt: skip
    tasks = ReportTable(
        f"Tasks that all were asked, after the best run of {format_power(found.flops[-1])} FLOPs",
        ("task", "objective", "FLOPs by 6ND", "score", "95%"),
        tuple(
            (
                each.task, each.objective, format_power(each.flops_6nd), f"{each.score:.3f}",
                format_interval(each.interval),
            )
            for each in found.tasks
        ),
    )  # fmt: skip
    return (Text(f"{NOT_COMPARED}."), table, *charts, *((tasks,) if found.tasks else ()))


def _build_laws(found: ObjectiveComparison) -> tuple[ReportTable | Text, ...]:
    comparable = ReportTable(
        "Comparable: how each grows with exact compute",
        ("objective", "N* ~ C^", "D* ~ C^", "compute that halves what is above E", "95%"),
        tuple(
            (
                each.name, f"{each.parameters_exponent:.3f}", f"{each.tokens_exponent:.3f}",
                f"{each.compute_to_halve:.3g} times",
                format_interval(each.compute_to_halve_interval),
            )
            for each in found.objectives
        ),
    )  # fmt: skip
    own = ReportTable(
        "Each objective's own, to be read along rows, not down columns: exact compute over 6ND, "
        "the law's constants, and the loss at the greatest compute",
        ("objective", "trained for", "runs", "of 6ND", "E", "alpha", "beta", "own loss"),
        tuple(
            (
                each.name, name_objective(each.objective), each.runs,
                f"{each.flops_of_six_n_d[0]:.2f} to {each.flops_of_six_n_d[1]:.2f}",
                f"{each.form.E:.4g}", f"{each.form.alpha:.3g}", f"{each.form.beta:.3g}",
                f"{each.optima[-1].loss:.4f}",
            )
            for each in found.objectives
        ),
    )  # fmt: skip
    return comparable, own
