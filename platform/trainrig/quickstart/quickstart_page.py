"""The quickstart's report page.

Its order: verdict, stages, injected faults and their outcomes, the loss through a killed worker,
tuning, preferences, scores before and after both, generations, next commands.
"""

import math
from statistics import median

import numpy as np

from trainrig.quickstart import quickstart_charts
from trainrig.quickstart.quickstart_results import MODELS, QuickstartResults, Scaling
from trainrig.report import page_rendering
from trainrig.report.plots import ChartFacts
from trainrig.scaling import law_plots

_NUMERALS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
_EXCERPT = 400  # Characters of a dropped text to show: enough to see why it was dropped.


def build_quickstart_page(results: QuickstartResults) -> str:
    """Render the page as HTML; the result depends on `results` alone."""
    astray = results.samples_lost + results.samples_repeated
    again, difference = quickstart_charts.compare_repeated_steps(results)
    warnings = []
    if astray:
        warnings.append(
            f"Of {results.samples_checked:,} samples, {astray:,} were not used for "
            "training exactly once."
        )
    if not results.restarts:
        warnings.append("No worker was killed, so this run does not show that training recovers.")
    if difference:
        warnings.append(
            f"Losses of repeated steps differ by up to {difference:.2g} nats per token, "
            "so training was not bit-exact on this machine."
        )
    return page_rendering.render_page(
        __name__,
        results=results,
        state="failed" if astray else "warning" if warnings else "done",
        warnings=warnings,
        astray=astray,
        again=again,
        difference=difference,
        numeral=_count,
        excerpt=_cut_excerpt,
        models=MODELS,
        guess=math.log(results.vocabulary),
        speed=median([point.tokens_per_second for point in results.speed]),
        seconds=sum(stage.seconds for stage in results.stages),
        planted=sum(kind.planted for kind in results.planted),
        caught=sum(kind.caught for kind in results.planted),
        missed=sum(kind.missed for kind in results.planted),
        faults=quickstart_charts.draw_caught(results),
        funnel=quickstart_charts.draw_funnel(results),
        sources=quickstart_charts.draw_sources(results),
        loss=quickstart_charts.draw_loss(results),
        speeds=quickstart_charts.draw_speed(results),
        tuning=quickstart_charts.draw_tuning(results),
        preferences=quickstart_charts.draw_preferences(results),
        scores=quickstart_charts.draw_scores(results),
        agreement=_draw_law(results.scaling) if results.scaling else {},
    )


def _draw_law(found: Scaling) -> ChartFacts:
    """Draw the losses that the law predicts for the sweep's runs, if there is a law."""
    columns = ("parameters", "tokens", "loss", "predicted")
    rows = [(p.parameters, p.tokens, p.loss, p.predicted) for p in found.points]
    sizes = {"sizes": len({point.parameters for point in found.points})}
    if found.plan is None:
        return sizes | {"columns": columns[:3], "rows": [row[:3] for row in rows]}
    actual = np.array([point.loss for point in found.points])
    predicted = np.array([point.predicted for point in found.points])
    return sizes | {
        "plot": law_plots.draw_agreement(predicted, actual),
        "columns": columns,
        "rows": rows,
        "worst": float(np.abs(predicted / actual - 1).max()),
    }


def _count(number: int, noun: str) -> str:
    """Format a number with its noun, in words up to ten: `Six stages`, `1,204 samples`."""
    numeral = _NUMERALS[number] if number < len(_NUMERALS) else f"{number:,}"
    return f"{numeral} {noun}{'' if number == 1 else 's'}"


def _cut_excerpt(text: str) -> str:
    return text if len(text) <= _EXCERPT else text[:_EXCERPT].rstrip() + " …"
