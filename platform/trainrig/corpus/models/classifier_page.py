"""The HTML report of a classifier, a pure function of its facts."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from trainrig import figures, report
from trainrig.figures import C1, MUTED
from trainrig.report import Chart, KeyFigure, ReportTable, Section, Verdict

HEIGHT = 300  # CSS pixels
LEAST_AREA = 0.7  # the page warns if the area under the curve is smaller


def render_classifier_page(facts: Mapping[str, Any]) -> str:
    """Render the report as HTML text."""
    half = next(row for row in facts["thresholds"] if row["least"] == 0.5)
    learnt = facts["positives"]["learnt"] + facts["negatives"]["learnt"]
    page = report.ReportPage(
        title="Classifier of texts",
        verdict=_build_verdict(facts, half),
        figures=(
            KeyFigure("area under the curve", f"{facts['auc']:.4f}", "", "1 is perfect"),
            KeyFigure("precision", f"{half['precision']:.3f}", "", "at a probability of 0.5"),
            KeyFigure("recall", f"{half['recall']:.3f}", "", "at a probability of 0.5"),
            KeyFigure(
                "trained on",
                f"{learnt:,}",
                "texts",
                f"{facts['measured_texts']:,} held out to measure",
            ),
        ),
        sections=(
            Section("reliability", "Calibration", (build_reliability_chart(facts),)),
            Section("thresholds", "Texts kept by each threshold", (_build_threshold_table(facts),)),
        ),
        commands=(
            report.PageCommand(
                "trainrig curate RUN.toml",
                "Score documents with this classifier: add a `Classifier` to `scorers`",
            ),
        ),
        provenance={
            "Texts": {
                name: f"{facts[name]['learnt']:,} trained on, {facts[name]['held_out']:,} held out"
                for name in ("positives", "negatives")
            },
            "Files": {"report.json": "all numbers of this page"},
        },
    )
    return page.render_html()


def _build_verdict(facts: Mapping[str, Any], half: Mapping[str, float]) -> Verdict:
    sentence = (
        f"On {facts['measured_texts']:,} held-out texts and at a threshold of 0.5, the "
        f"classifier keeps {half['recall']:.1%} of the wanted texts, and {half['precision']:.1%} "
        "of the texts that it keeps are wanted."
    )
    if facts["auc"] >= LEAST_AREA:
        return Verdict(sentence)
    warning = (
        "The classifier hardly separates wanted from other texts (area under the curve "
        f"{facts['auc']:.3f}; 0.5 is chance). Train it on more texts, or on texts that differ in "
        "their words."
    )
    return Verdict(sentence, "warning", (warning,))


def build_reliability_chart(facts: Mapping[str, Any]) -> Chart:
    """Build the chart of observed shares over predicted probabilities."""
    curve = facts["reliability"]
    gap = sum(row["texts"] * abs(row["predicted"] - row["observed"]) for row in curve)
    return Chart(
        f"Predicted probabilities are off by {gap / facts['measured_texts']:.3f} on average",
        figures.draw(partial(plot_reliability, curve=curve), HEIGHT),
        label="Share of wanted texts against the predicted probability, with the diagonal of "
        "perfect calibration.",
        caption=f"n = {facts['measured_texts']:,} texts used neither for training nor for "
        "calibration, by tenths of the probability. On the diagonal, predicted probabilities "
        "are right.",
        table=ReportTable(
            "The reliability curve",
            ("predicted", "observed", "texts"),
            tuple((row["predicted"], row["observed"], row["texts"]) for row in curve),
        ),
    )


def plot_reliability(ax: Axes, curve: list[dict[str, float]]) -> Axes:
    """Plot the points of the reliability curve, and the diagonal of perfect calibration."""
    ax.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1)
    predicted = np.array([row["predicted"] for row in curve])
    ax.plot(predicted, [row["observed"] for row in curve], color=C1, marker="o")
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.set(xlabel="predicted probability", ylabel="share of texts that are wanted")
    return ax


def _build_threshold_table(facts: Mapping[str, Any]) -> ReportTable:
    rows = facts["thresholds"]
    return ReportTable(
        "Held-out texts with at least this probability",
        ("least", "precision", "recall", "share kept"),
        tuple((row["least"], row["precision"], row["recall"], row["kept"]) for row in rows),
    )
