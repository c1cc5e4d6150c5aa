"""The section of the quickstart's report on its sweep, scaling law and plan."""

from functools import partial

import numpy as np

from trainrig import figures, report
from trainrig.quickstart.report.results import Scaling
from trainrig.report import Chart, Details, ReportTable, Section, Text, TextSample
from trainrig.scaling.law_plots import (
    Agreement,
    plot_agreement,
)

_HEIGHT = 320  # Height of the drawing in pixels.


def build_law_section(found: Scaling) -> Section:
    """Build the section with the sweep's runs, their scaling law and a larger planned run.

    Without a law, the section says why.
    """
    sizes = len({point.parameters for point in found.points})
    what = (
        f"Scaling law: {len(found.points)} {'run' if len(found.points) == 1 else 'runs'} of "
        f"{sizes} {'size' if sizes == 1 else 'sizes'}"
    )
    if found.plan is None:
        reason = Text(f"No law can be fitted to them: {found.problem}.")
        return Section(
            "law", f"{what}, too few or too alike for a law", (reason, _build_runs_table(found))
        )
    caution = Text(
        "A few runs of small models constrain a law only loosely, as the intervals show. "
        "This section shows the path from a sweep to a plan, not how a large model will "
        "perform."
    )
    constants = ReportTable(
        "The law's constants", ("constant", "value", "95% interval"), found.constants
    )
    plan = TextSample(
        f"A plan for {report.format_short(found.plan.flops)} FLOPs", "\n".join(found.plan.lines)
    )
    return Section(
        "law",
        f"{what}, and a plan for ten times their compute",
        (_draw_agreement(found), caution, constants, Details("The plan", (plan,))),
    )


def _build_runs_table(found: Scaling) -> ReportTable:
    columns = ("parameters", "tokens", "loss")
    rows = tuple((point.parameters, point.tokens, point.loss) for point in found.points)
    return ReportTable("The runs of the sweep", columns, rows)


def _draw_agreement(found: Scaling) -> Chart:
    predicted = np.array([point.predicted for point in found.points])
    actual = np.array([point.loss for point in found.points])
    worst = float(np.abs(predicted / actual - 1).max())
    plot = partial(plot_agreement, fitted=Agreement(predicted, actual))
    rows = tuple((p.parameters, p.tokens, p.loss, p.predicted) for p in found.points)
    return Chart(
        f"The law is within {worst:.1%} of each of the {len(found.points)} runs it was fitted to",
        figures.draw(plot, _HEIGHT),
        label=(
            "Points: the loss that the law predicts against the measured loss, with the diagonal."
        ),
        caption=f"n = {len(found.points)} runs, with the held-out loss at the end of each.",
        table=ReportTable(
            "The runs of the sweep", ("parameters", "tokens", "loss", "predicted"), rows
        ),
    )
