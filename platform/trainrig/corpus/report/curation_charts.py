"""Charts of the curation report; each title states a finding computed from the numbers.

A curation report has two dozen histograms. They are written element by element as SVG, in the
colours of the page's theme, because matplotlib took about 70 ms for each: most of the time of a
small curation. The chart of matches shows the probability that a MinHash compares two texts.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes

from trainrig import figures
from trainrig.corpus.filters.rule_verdicts import Rule
from trainrig.corpus.limits import Limit
from trainrig.corpus.report.curation_tallies import BinRow, CurationTallies, StepRow
from trainrig.corpus.signatures.minhash import MinHash, compute_match_curve
from trainrig.figures import C1, C2, MUTED, BarPart, BarRow
from trainrig.report import Chart, ReportTable, format_percent, format_short

Bin = tuple[tuple[float, float | None], int]  # lower bound, upper bound (None: open), documents
WIDTH = 420  # CSS pixels
HEIGHT = 180  # `figures.draw` has the same width
# edges of the axes
RIGHT = 417.0
TOP = 6.0
BOTTOM = 159.0
SHARE = 2.0  # up to this value the axis is linear; beyond it, logarithmic
MARGIN = 1.05  # length of an axis relative to its largest value
MAX_TICKS = 8
TEXT = "font-size: 11px; fill: var(--muted); text-anchor:"
LINE = "fill: none; stroke: var(--grid); stroke-width: 0.8"


def draw_histogram(bins: Sequence[Bin], bounds: Sequence[float]) -> str:
    """Draw the documents by bin as bars, and each of `bounds` as a line.

    If values exceed 2, the axis is logarithmic (linear below 1); otherwise it is linear.
    """
    edges = [(least, least * 2 if below is None else below) for (least, below), _ in bins]
    furthest = max([most for _, most in edges] + list(bounds))
    scaled = _scale_linear if max(most for _, most in edges) <= SHARE else scale_symlog
    highest = max(number for _, number in bins)
    y_ticks = _choose_round_ticks(highest * MARGIN, whole=True)
    left = 25 + max(_estimate_width(format_short(tick)) for tick in y_ticks)
    x_unit = (RIGHT - left) / (scaled(furthest) * MARGIN)
    y_unit = (BOTTOM - TOP) / (highest * MARGIN)

    def x(value: float) -> float:
        return left + scaled(max(value, 0.0)) * x_unit

    def y(documents: float) -> float:
        return BOTTOM - documents * y_unit

    linear = scaled is _scale_linear
    parts = [
        _draw_x_tick(x(at), f"{at:g}" if linear else format_short(at))
        for at in _choose_x_ticks(furthest, linear)
    ]
    parts += [_draw_y_tick(left, y(tick), format_short(tick)) for tick in y_ticks]
    parts.append(_draw_y_label())
    for (least, most), (_, number) in zip(edges, bins, strict=True):
        parts.append(_draw_bar(x(least), x(most), y(number)))
    parts += [_draw_bound(x(bound), format_short(bound)) for bound in bounds]
    parts.append(f'<path d="M {left:.2f} {TOP} V {BOTTOM} H {RIGHT}" style="{LINE}" />')
    body = "\n".join(parts)
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {view}>\n{body}\n</svg>'


def scale_symlog(value: float) -> float:
    """Scale linearly below 1 and logarithmically above, as matplotlib's `symlog` (threshold 1)."""
    return value / 0.9 if value <= 1 else 1 / 0.9 + math.log10(value)


def _scale_linear(value: float) -> float:
    return value


def _choose_x_ticks(furthest: float, linear: bool) -> list[float]:
    if linear:
        return _choose_round_ticks(furthest * MARGIN)
    powers = range(math.floor(math.log10(furthest)) + 1)
    return [0.0, *(10.0**power for power in powers[:: math.ceil(len(powers) / MAX_TICKS)])]


def _choose_round_ticks(most: float, whole: bool = False) -> list[float]:
    """Return ticks from 0 to at most `most`, 1, 2 or 5 times a power of ten apart.

    There are at most MAX_TICKS. `whole`: the distance is a whole number.
    """
    size = 10.0 ** math.floor(math.log10(most / MAX_TICKS))
    steps = (factor * size for factor in (1, 2, 5, 10))
    step = next(step for step in steps if most / step < MAX_TICKS)
    if whole:
        step = max(step, 1.0)
    return [round(count * step, 12) for count in range(int(most / step) + 1)]


def _estimate_width(text: str) -> float:
    """Estimate a number's width in DejaVu Sans: points and spaces are half as wide as digits."""
    return sum(3.5 if letter in ".,\u00a0 " else 7.0 for letter in text)


def _draw_x_tick(x: float, label: str) -> str:
    return (
        f'<path d="M {x:.2f} {BOTTOM + 3.5} V {TOP}" style="{LINE}" />'
        f'<text style="{TEXT} middle" x="{x:.2f}" y="174.36">{label}</text>'
    )


def _draw_y_label() -> str:
    place = f"11.36 {(TOP + BOTTOM) / 2:.2f}"
    turned = f'transform="translate({place}) rotate(-90)"'
    return f'<text style="{TEXT} middle" {turned}>documents</text>'


def _draw_y_tick(left: float, y: float, label: str) -> str:
    return (
        f'<path d="M {left - 3.5:.2f} {y:.2f} H {RIGHT}" style="{LINE}" />'
        f'<text style="{TEXT} end" x="{left - 7:.2f}" y="{y + 4.18:.2f}">{label}</text>'
    )


def _draw_bar(left: float, right: float, top: float) -> str:
    place = f'x="{left:.2f}" y="{top:.2f}" width="{right - left:.2f}" height="{BOTTOM - top:.2f}"'
    return f'<rect {place} style="fill: var(--c1)" />'


def _draw_bound(x: float, label: str) -> str:
    style = "fill: none; stroke: var(--c2); stroke-width: 1.5"
    return (
        f'<path d="M {x:.2f} {BOTTOM} V {TOP}" style="{style}" />'
        f'<text style="{TEXT} start" x="{x + 3:.2f}" y="17.36">{label}</text>'
    )


_MATCH_CHART_HEIGHT = 200  # CSS pixels


def chart_matches(settings: MinHash) -> Chart:
    """Chart the probability curve with the similarity threshold."""
    similarities, probabilities = compute_match_curve(settings)
    found = format_percent(settings.compute_candidate_probability(settings.threshold), 1)
    steps = slice(0, None, 5)
    return Chart(
        f"{found} of the pairs at the threshold are compared",
        figures.draw(partial(_plot_match_curve, settings=settings), _MATCH_CHART_HEIGHT),
        label="Probability of comparison against Jaccard similarity, with the threshold.",
        caption=f"Computed from the settings: 1 - (1 - s^{settings.rows})^{settings.bands} for "
        f"{settings.bands} bands of {settings.rows} rows. A compared pair is a duplicate "
        f"only at a Jaccard similarity of {settings.threshold:g} or more.",
        table=ReportTable(
            "Probability that a pair is compared",
            ("Jaccard similarity", "probability"),
            tuple(
                (round(float(similarity), 2), round(float(probability), 4))
                for similarity, probability in zip(
                    similarities[steps], probabilities[steps], strict=True
                )
            ),
        ),
    )


def _plot_match_curve(ax: Axes, settings: MinHash) -> Axes:
    ax.plot(*compute_match_curve(settings), color=C1, linewidth=2.2)
    ax.axvline(settings.threshold, color=C2, linewidth=1.5)
    ax.annotate(
        f"threshold {settings.threshold:g}",
        (settings.threshold, 0),
        (-4, 4),
        textcoords="offset points",
        ha="right",
        color=MUTED,
        fontsize=11,
    )
    ax.set(
        xlim=(0, 1),
        ylim=(0, 1.02),
        xlabel="Jaccard similarity of two texts",
        ylabel="probability",
    )
    return ax


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
