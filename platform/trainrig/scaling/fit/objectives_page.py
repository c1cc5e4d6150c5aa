"""Report page (`report.html`) of a comparison of objectives: the best size and tokens of each."""

from collections.abc import Iterator, Sequence

import numpy as np

from trainrig import storage
from trainrig.report import page_rendering, plots
from trainrig.report.plots import ChartFacts
from trainrig.scaling.fit import objective_comparison
from trainrig.scaling.fit.fit_page import PAGE
from trainrig.scaling.fit.law_fit import LAW_FILE, Fitted
from trainrig.scaling.law_plots import format_power
from trainrig.scaling.laws import law_formats
from trainrig.scaling.laws.law import Interval
from trainrig.scaling.laws.law_formats import format_count, format_interval, name_objective


def write_objectives_page(
    folder: str, found: objective_comparison.ObjectiveComparison, fits: Sequence[Fitted]
) -> str:
    """Write the comparison's `report.html` to `folder`, and return the path."""
    path = storage.join(folder, PAGE)
    page = page_rendering.render_page(
        __name__,
        found=found,
        formats=law_formats,
        format_sizes=_format_sizes,
        most=format_power(found.flops[-1]),
        not_compared=objective_comparison.NOT_COMPARED,
        charts=list(_draw_best_divisions(found, fits)),
        optima=[
            (
                format_power(flops),
                objective.name,
                format_count(objective.optima[n].parameters),
                _format_sizes(objective.optima[n].parameters_interval),
                format_count(objective.optima[n].tokens),
                "yes" if objective.optima[n].at_an_end else "no",
            )
            for n, flops in enumerate(found.flops)
            for objective in found.objectives
        ],
        tasks=[
            (
                t.task,
                t.objective,
                format_power(t.flops_6nd),
                f"{t.score:.3f}",
                format_interval(t.interval),
            )
            for t in found.tasks
        ],
        growth=[
            (
                law.name,
                f"{law.parameters_exponent:.3f}",
                f"{law.tokens_exponent:.3f}",
                f"{law.compute_to_halve:.3g} times",
                format_interval(law.compute_to_halve_interval),
            )
            for law in found.objectives
        ],
        laws=[
            (
                law.name,
                name_objective(law.objective),
                law.runs,
                "{:.2f} to {:.2f}".format(*law.flops_of_six_n_d),
                f"{law.form.E:.4g}",
                f"{law.form.alpha:.3g}",
                f"{law.form.beta:.3g}",
                f"{law.optima[-1].loss:.4f}",
            )
            for law in found.objectives
        ],
        paths={f.law.name: storage.join(folder, f.law.name, LAW_FILE) for f in fits},
        sources={fitted.law.name: fitted.law.source for fitted in fits},
        made_by=fits[0].law.made_by,
    )
    storage.write(path, page.encode())
    return path


def _format_sizes(found: Interval | None) -> str:
    """Format an interval of parameters with the units of sizes."""
    if found is None or found.low is None or found.high is None:
        return format_interval(found)
    return f"{format_count(found.low)} to {format_count(found.high)}"


def _draw_best_divisions(
    found: objective_comparison.ObjectiveComparison, fits: Sequence[Fitted]
) -> Iterator[ChartFacts]:
    """Draw the best parameters, and the best tokens, over compute, one line per objective."""
    least = max(float(fitted.runs.flops.min()) for fitted in fits)
    computes = np.geomspace(least, found.flops[-1], objective_comparison.COMPUTES)
    optima = {
        fitted.law.name: [
            objective_comparison.find_best_division(fitted.law.form, fitted.runs, flops)
            for flops in computes
        ]
        for fitted in fits
    }
    x = plots.Axis("compute (FLOPs, counted exactly)", "power", log=True)
    for name, quantity in (("parameters", "parameters, N*"), ("tokens", "tokens of text, D*")):
        curves = {of: [getattr(best, name) for best in bests] for of, bests in optima.items()}
        lines = [
            plots.Line(computes, best, of, colour, width=2.2)
            for (of, best), colour in zip(curves.items(), plots.SERIES, strict=False)
        ]
        yield {
            "plot": plots.Plot(lines, x, plots.Axis(quantity, log=True), height=300),
            "columns": ("FLOPs", *curves),
            "rows": list(zip(map(format_power, computes), *curves.values(), strict=True)),
            "quantity": quantity,
            "times": computes[-1] / computes[0],
            "growth": {of: best[-1] / best[0] for of, best in curves.items()},
        }
