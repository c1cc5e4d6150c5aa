"""Report page (`report.html`) of a comparison of objectives: the best size and tokens of each."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from trainrig import figures, report, storage
from trainrig.report import Chart, KeyFigure, ReportTable, Section, Text
from trainrig.scaling.fit import objective_comparison
from trainrig.scaling.fit.fit_page import PAGE
from trainrig.scaling.fit.law_fit import LAW_FILE, Fitted
from trainrig.scaling.fit.law_views import format_power
from trainrig.scaling.law_plots import OBJECTIVE_COLOURS, BestOf, plot_objectives
from trainrig.scaling.laws.law import Interval
from trainrig.scaling.laws.law_formats import format_count, format_interval, name_objective


def write_objectives_page(
    folder: str, found: objective_comparison.ObjectiveComparison, fits: Sequence[Fitted]
) -> str:
    """Write the comparison's `report.html` to `folder`, and return the path."""
    path = storage.join(folder, PAGE)
    page = report.ReportPage(
        title="Objectives at equal compute: "
        f"{', '.join(objective.name for objective in found.objectives)}",
        verdict=report.Verdict(_format_sentence(found), "done", ()),
        figures=_build_key_figures(found),
        sections=(
            Section(
                "best", "Best size and tokens at equal compute", _build_best_divisions(found, fits)
            ),
            Section("laws", "Scaling laws", _build_laws(found)),
        ),
        commands=tuple(
            report.PageCommand(
                f"trainrig plan {storage.join(folder, fitted.law.name, LAW_FILE)} --flops "
                f"{format_power(found.flops[-1])}",
                f"Plan a run of {fitted.law.name}; the plan counts FLOPs as 6ND",
            )
            for fitted in fits
        ),
        provenance={
            "Files": {fitted.law.name: fitted.law.source for fitted in fits},
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


def _format_sentence(found: objective_comparison.ObjectiveComparison) -> str:
    best = "; ".join(
        f"{objective.name} {format_count(objective.optima[-1].parameters)} parameters on "
        f"{format_count(objective.optima[-1].tokens)} tokens"
        for objective in found.objectives
    )
    return f"Compute-optimal at {format_power(found.flops[-1])} FLOPs, counted exactly: {best}."


def _build_key_figures(found: objective_comparison.ObjectiveComparison) -> tuple[KeyFigure, ...]:
    """Build the key figures: optima at the greatest compute of the first three objectives."""
    figures = []
    for objective in found.objectives[:3]:
        best = objective.optima[-1]
        sure = _format_sizes(best.parameters_interval)
        figures += [
            KeyFigure(f"N*, {objective.name}", format_count(best.parameters), "parameters", sure),
            KeyFigure(f"D*, {objective.name}", format_count(best.tokens), "tokens", ""),
        ]
    return tuple(figures)


def _build_best_divisions(
    found: objective_comparison.ObjectiveComparison, fits: Sequence[Fitted]
) -> tuple[Text | Chart | ReportTable, ...]:
    least = max(float(fitted.runs.flops.min()) for fitted in fits)
    computes = np.geomspace(least, found.flops[-1], objective_comparison.COMPUTES)
    optima = [
        [
            objective_comparison.find_best_division(fitted.law.form, fitted.runs, flops)
            for flops in computes
        ]
        for fitted in fits
    ]
    charts = []
    for name, quantity in (("parameters", "parameters, N*"), ("tokens", "tokens of text, D*")):
        curves = [
            BestOf(fitted.law.name, computes, np.array([getattr(best, name) for best in divisions]))
            for fitted, divisions in zip(fits, optima, strict=True)
        ]
        rows = zip(
            map(format_power, computes), *(curve.best.tolist() for curve in curves), strict=True
        )
        drawn = ", ".join(
            f"{curve.name} {curve.best[-1] / curve.best[0]:.3g} times" for curve in curves
        )
        charts.append(
            Chart(
                (
                    f"{quantity}, from the lowest to {computes[-1] / computes[0]:.3g} times the "
                    f"compute: {drawn}"
                ),
                figures.draw(partial(plot_objectives, objectives=curves, quantity=quantity), 300),
                label=f"Compute-optimal {quantity} against compute, one line per objective.",
                caption="Optima by the law of each objective, for compute that all sweeps share "
                "and sizes in the range of each sweep. "
                f"The chart shows the first {len(OBJECTIVE_COLOURS)} objectives.",
                table=ReportTable("Best", ("FLOPs", *(c.name for c in curves)), tuple(rows)),
            )
        )
    table = ReportTable(
        "Compute-optimal sizes and tokens",
        ("FLOPs", "objective", "parameters", "95%", "tokens of text", "at end of range"),
        tuple(
            (
                format_power(flops), objective.name, format_count(objective.optima[n].parameters),
                _format_sizes(objective.optima[n].parameters_interval),
                format_count(objective.optima[n].tokens),
                "yes" if objective.optima[n].at_an_end else "no",
            )
            for n, flops in enumerate(found.flops)
            for objective in found.objectives
        ),
    )  # fmt: skip
    tasks = ReportTable(
        ("Scores of shared tasks after the compute-optimal run of "
            f"{format_power(found.flops[-1])} FLOPs"),
        ("task", "objective", "FLOPs by 6ND", "score", "95%"),
        tuple(
            (
                score.task, score.objective, format_power(score.flops_6nd), f"{score.score:.3f}",
                format_interval(score.interval),
            )
            for score in found.tasks
        ),
    )  # fmt: skip
    return (
        Text(f"{objective_comparison.NOT_COMPARED}."),
        table,
        *charts,
        *((tasks,) if found.tasks else ()),
    )


def _build_laws(found: objective_comparison.ObjectiveComparison) -> tuple[ReportTable | Text, ...]:
    comparable = ReportTable(
        "Comparable: growth with exact compute",
        ("objective", "N* ~ C^", "D* ~ C^", "compute that halves the loss above E", "95%"),
        tuple(
            (
                objective.name, f"{objective.parameters_exponent:.3f}",
                f"{objective.tokens_exponent:.3f}",
                f"{objective.compute_to_halve:.3g} times",
                format_interval(objective.compute_to_halve_interval),
            )
            for objective in found.objectives
        ),
    )  # fmt: skip
    own = ReportTable(
        "Not comparable between objectives: exact compute over 6ND, the constants of the law, "
        "and the loss at the largest compute",
        ("objective", "kind", "runs", "of 6ND", "E", "alpha", "beta", "own loss"),
        tuple(
            (
                objective.name, name_objective(objective.objective), objective.runs,
                f"{objective.flops_of_six_n_d[0]:.2f} to {objective.flops_of_six_n_d[1]:.2f}",
                f"{objective.form.E:.4g}", f"{objective.form.alpha:.3g}",
                f"{objective.form.beta:.3g}",
                f"{objective.optima[-1].loss:.4f}",
            )
            for objective in found.objectives
        ),
    )  # fmt: skip
    return comparable, own
