"""The HTML report of a classifier, a pure function of its facts."""

from collections.abc import Mapping
from typing import Any

from trainrig.report import page_rendering, plots
from trainrig.report.plots import ChartFacts

LEAST_AREA = 0.7  # the page warns if the area under the curve is smaller


def render_classifier_page(facts: Mapping[str, Any]) -> str:
    """Render the report as HTML text."""
    warning = (
        "The classifier hardly separates wanted from other texts (area under the curve "
        f"{facts['auc']:.3f}; 0.5 is chance). Train it on more texts, or on texts that differ in "
        "their words."
    )
    return page_rendering.render_page(
        __name__,
        facts=facts,
        warnings=[] if facts["auc"] >= LEAST_AREA else [warning],
        half=next(row for row in facts["thresholds"] if row["least"] == 0.5),
        reliability=draw_reliability(facts),
    )


def draw_reliability(facts: Mapping[str, Any]) -> ChartFacts:
    """Draw observed shares over predicted probabilities, with the diagonal."""
    rows = [(row["predicted"], row["observed"], row["texts"]) for row in facts["reliability"]]
    gap = sum(texts * abs(predicted - observed) for predicted, observed, texts in rows)
    marks = [
        plots.Line([0, 1], [0, 1], colour="muted", style="--", width=1),
        plots.Line([row[0] for row in rows], [row[1] for row in rows], style="o-"),
    ]
    x = plots.Axis("predicted probability", low=0, high=1)
    y = plots.Axis("share of texts that are wanted", low=0, high=1)
    return {
        "plot": plots.Plot(marks, x, y, height=300),
        "columns": ("predicted", "observed", "texts"),
        "rows": rows,
        "gap": gap / facts["measured_texts"],
    }
