"""Charts of the curation report; each title states a finding computed from the numbers."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from trainrig import figures
from trainrig.corpus.filters.rule_verdicts import Rule
from trainrig.corpus.limits import Limit
from trainrig.corpus.report.histogram import draw_histogram
from trainrig.corpus.report.tallies import BinRow, CurationTallies, StepRow
from trainrig.figures import C1, C2, BarPart, BarRow
from trainrig.report import Chart, ReportTable, format_percent, format_short

MOST_ROWS = 14  # rows of a chart; the table has all rows
ROW_HEIGHT = 34  # CSS pixels


def build_steps_chart(tallies: CurationTallies, seen: int) -> Chart:
    """Chart the documents that each step dropped first, and those it would drop besides."""
    steps = sum_steps(tallies.steps)
    order = sorted(steps, key=lambda step: (-steps[step][0], -steps[step][1], step))
    drawn = [step for step in order if steps[step][1]][:MOST_ROWS]
    rows = [
        BarRow(
            step,
            (float(steps[step][0]), float(steps[step][1] - steps[step][0])),
            f"{steps[step][0]:,} / {steps[step][1]:,}",
        )
        for step in drawn
    ]
    parts = (
        BarPart("dropped by this step", C1),
        BarPart("dropped before, but breaks this rule too", C2, hatched=True),
    )
    worst = order[0]
    most = steps[worst][0]
    return Chart(
        f"{worst} drops the most: {most:,} documents, {format_percent(most, seen)}",
        figures.draw(
            partial(figures.plot_rows, rows=rows, parts=parts, x_label="documents"),
            70 + ROW_HEIGHT * len(rows),
        ),
        label="Bars of documents that each step dropped, and of those that it would drop alone.",
        caption=f"n = {seen:,} documents. Steps run in the order of the run file. Duplicates are "
        "searched among the documents that the rules keep. "
        + (
            f"The chart shows the largest {len(drawn)} of {len(order)} steps."
            if len(order) > len(drawn)
            else ""
        ),
        table=build_steps_table(tallies.steps),
    )


def sum_steps(rows: Sequence[StepRow]) -> dict[str, tuple[int, int]]:
    """Sum for each step the documents that it dropped first, and that it would drop alone."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        sums[row.step][0] += row.first_documents
        sums[row.step][1] += row.any_documents
    return {step: (first, any_) for step, (first, any_) in sums.items()}


def build_steps_table(rows: Sequence[StepRow]) -> ReportTable:
    """Build the table of documents and bytes by step, in the order of the steps."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in rows:
        values = (row.first_documents, row.any_documents, row.first_bytes, row.any_bytes)
        sums[row.step] = [a + b for a, b in zip(sums[row.step], values, strict=True)]
    return ReportTable(
        "Documents and bytes dropped by each step",
        ("step", "dropped: documents", "alone: documents", "dropped: bytes", "alone: bytes"),
        tuple((step, *values) for step, values in sums.items()),
    )


def build_signal_charts(
    tallies: CurationTallies, rules: Mapping[str, Sequence[Rule]]
) -> tuple[Chart, ...]:
    """Chart the distribution of each bounded signal, with its bounds."""
    by_signal: dict[str, list[BinRow]] = defaultdict(list)
    for row in tallies.bins:
        by_signal[row.signal].append(row)
    return tuple(_build_signal_chart(signal, rows, rules) for signal, rows in by_signal.items())


def _build_signal_chart(
    signal: str, rows: Sequence[BinRow], rules: Mapping[str, Sequence[Rule]]
) -> Chart:
    bins: dict[tuple[float, float | None], int] = defaultdict(int)
    for row in rows:
        bins[row.least, row.below] += row.documents
    ordered = sorted(bins.items())
    bounds = sorted(
        {
            (bound, side)
            for of_source in rules.values()
            for rule in of_source
            if isinstance(rule.limit, Limit) and rule.limit.signal == signal
            for bound, side in ((rule.limit.least, "least"), (rule.limit.most, "most"))
            if bound is not None
        }
    )
    documents = sum(bins.values())
    return Chart(
        f"{signal}: {_describe_bounds(bounds)}",
        draw_histogram(ordered, [bound for bound, _ in bounds]),
        label=f"Histogram of {signal} with its bounds.",
        caption=f"n = {documents:,} documents of all sources. Each bar is a bin of the table.",
        table=ReportTable(
            f"Documents by {signal}",
            ("from", "below", "documents"),
            tuple((least, below, number) for (least, below), number in ordered),
        ),
    )


def _describe_bounds(bounds: Sequence[tuple[float, str]]) -> str:
    return ", ".join(f"at {side} {format_short(bound)}" for bound, side in bounds) or "no bound"
