"""The HTML report of a curation, a pure function of its tallies.

It shows what was dropped and why, by rule, source and language; the thresholds within the
distribution of each signal; samples of dropped documents for each rule; near-duplicates with their
differences; and what could not be read.
"""

import difflib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainrig.corpus.decontaminate.contamination_report import LEAST_SHARES
from trainrig.corpus.dedup import MinHash
from trainrig.corpus.filters.rule_verdicts import Rule
from trainrig.corpus.limits import Limit
from trainrig.corpus.report import curation_tallies, host_tallies
from trainrig.corpus.report.curation_tallies import BinRow, CurationTallies, StepRow
from trainrig.corpus.report.removal_counts import RemovalCounts
from trainrig.corpus.signatures.minhash import compute_match_curve
from trainrig.report import page_rendering, plots
from trainrig.report.number_formats import format_percent
from trainrig.report.plots import ChartFacts

MOST_ROWS = 14  # rows of a chart; the table has all rows
_WORD = re.compile(r"\S+")
Span = tuple[int, int]


def find_differences(one: str, other: str) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Return the spans of words only in `one`, and of words only in `other`, in order."""
    words = [list(_WORD.finditer(text)) for text in (one, other)]
    first_text, second_text = ([word.group() for word in text_words] for text_words in words)
    matcher = difflib.SequenceMatcher(None, first_text, second_text, autojunk=False)
    found: tuple[list[Span], list[Span]] = ([], [])
    for kind, *places in matcher.get_opcodes():
        for spans, matches, (first, end) in zip(
            found, words, (places[:2], places[2:]), strict=True
        ):
            if kind != "equal" and end > first:
                spans.append((matches[first].start(), matches[end - 1].end()))
    return tuple(found[0]), tuple(found[1])


def render_curation_page(
    summary: CurationTallies,
    counts: Mapping[str, Any],
    rules: Mapping[str, Sequence[Rule]],
    cost: Mapping[str, float],
    provenance: Mapping[str, Mapping[str, str]],
    near: MinHash,
    removed: RemovalCounts | None = None,
) -> str:
    """Render the report as HTML text.

    `rules` are those of each source, `counts` and `cost` those of the manifest, `near` the settings
    of the search for near-duplicates. `removed` has the spans removed from documents.
    """
    samples: dict[str, list[curation_tallies.SampleRow]] = defaultdict(list)
    for row in summary.samples:
        samples[row.step].append(row)
    lost = sum(row.records for row in summary.quarantine)
    seconds = cost["cpu_seconds"]
    return page_rendering.render_page(
        __name__,
        state="warning" if lost > counts["documents_in"] / 2 else "done",
        warnings=_list_warnings(summary, counts, lost),
        summary=summary,
        counts=counts,
        cost=cost,
        provenance=provenance,
        near=near,
        removed=removed or RemovalCounts(),
        least_shares=LEAST_SHARES,
        tallies=curation_tallies,
        host_tallies=host_tallies,
        a_second=counts["documents_in"] / seconds if seconds else 0.0,
        steps=draw_steps(summary),
        sources=sorted(summary.sources, key=lambda row: (row.source, -row.seen_documents)),
        signals=list(draw_signals(summary, rules)),
        samples=samples,
        matches=draw_matches(near),
        pairs=[(pair, *_mark_differences(pair)) for pair in summary.pairs],
        hosts=host_tallies.list_lowest_hosts(summary.hosts),
    )


def _list_warnings(summary: CurationTallies, counts: Mapping[str, Any], lost: int) -> list[str]:
    warnings = []
    if idle := [step for step, (_, by_itself) in sum_steps(summary.steps).items() if not by_itself]:
        some = ", ".join(idle[:4]) + (", …" if len(idle) > 4 else "")
        rules = "1 rule" if len(idle) == 1 else f"{len(idle)} rules"
        warnings.append(f"{rules} would drop no document: {some}.")
    if thin := host_tallies.describe_doubtful(summary.hosts):
        warnings.append(f'{thin[0].upper()}{thin[1:]}. See "How much of the pages was extracted".')
    if lost > counts["documents_in"] / 2:
        share = format_percent(lost, counts["documents_in"])
        see = 'See "Records without a document".'
        warnings.append(f"{share} of the records gave no document. {see}")
    return warnings


def sum_steps(rows: Sequence[StepRow]) -> dict[str, tuple[int, int]]:
    """Sum for each step the documents that it dropped first, and that it would drop alone."""
    return {step: (first, alone) for step, first, alone, *_ in list_step_cells(rows)}


def list_step_cells(rows: Sequence[StepRow]) -> list[tuple[str, int, int, int, int]]:
    """Return documents dropped and alone, then bytes, by step in the order of the steps."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in rows:
        values = (row.first_documents, row.any_documents, row.first_bytes, row.any_bytes)
        sums[row.step] = [a + b for a, b in zip(sums[row.step], values, strict=True)]
    return [(step, a, b, c, d) for step, (a, b, c, d) in sums.items()]


def draw_steps(tallies: CurationTallies) -> ChartFacts:
    """Draw the documents that each step dropped first, and those it would drop besides."""
    steps = sum_steps(tallies.steps)
    order = sorted(steps, key=lambda step: (-steps[step][0], -steps[step][1], step))
    rows = [
        plots.BarRow(step, (first, alone - first), f"{first:,} / {alone:,}")
        for step, (first, alone) in ((step, steps[step]) for step in order)
        if alone
    ]
    parts = (
        plots.BarPart("dropped by this step"),
        plots.BarPart("dropped before", "c2", hatched=True),
    )
    return {
        "plot": plots.Bars(rows[:MOST_ROWS], plots.Axis("documents", "short"), parts),
        "columns": (
            *("step", "dropped: documents", "alone: documents", "dropped: bytes", "alone: bytes"),
        ),
        "rows": list_step_cells(tallies.steps),
        "worst": (order[0], steps[order[0]][0]) if rows else None,
        "all": len(order),
    }


def draw_signals(
    tallies: CurationTallies, rules: Mapping[str, Sequence[Rule]]
) -> Iterator[ChartFacts]:
    """Draw the distribution of each bounded signal, with its bounds."""
    by_signal: dict[str, list[BinRow]] = defaultdict(list)
    for row in tallies.bins:
        by_signal[row.signal].append(row)
    limits = [rule.limit for source in rules.values() for rule in source]
    for signal, bins in by_signal.items():
        counted: dict[tuple[float, float | None], int] = defaultdict(int)
        for row in bins:
            counted[row.least, row.below] += row.documents
        ordered = sorted(counted.items())
        bounds = sorted(
            {
                (bound, side)
                for limit in limits
                if isinstance(limit, Limit) and limit.signal == signal
                for bound, side in ((limit.least, "least"), (limit.most, "most"))
                if bound is not None
            }
        )
        yield {
            "plot": plots.Histogram(ordered, [bound for bound, _ in bounds]),
            "columns": ("from", "below", "documents"),
            "rows": [(least, below, number) for (least, below), number in ordered],
            "signal": signal,
            "bounds": bounds,
            "documents": sum(counted.values()),
        }


def draw_matches(near: MinHash) -> ChartFacts:
    """Draw the probability that a pair is compared, with the similarity threshold."""
    similarities, probabilities = compute_match_curve(near)
    marks: list[plots.Mark] = [
        plots.Line(similarities, probabilities, width=2.2),
        plots.Rule(near.threshold, "x", colour="c2", style="-", width=1.5),
        plots.Note(near.threshold, 0, f"threshold {near.threshold:g}", -4, 10, "right"),
    ]
    x = plots.Axis("Jaccard similarity of two texts", low=0, high=1)
    y = plots.Axis("probability", low=0, high=1.02)
    rows = zip(similarities[::5].tolist(), probabilities[::5].tolist(), strict=True)
    return {
        "plot": plots.Plot(marks, x, y, height=200),
        "columns": ("Jaccard similarity", "probability"),
        "rows": [(round(one, 2), round(other, 4)) for one, other in rows],
        "found": near.compute_candidate_probability(near.threshold),
    }


def _mark_differences(pair: curation_tallies.PairRow) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    gone, stayed = find_differences(pair.text, pair.kept_text)
    # the end of an excerpt is no difference
    if max(len(pair.text), len(pair.kept_text)) >= curation_tallies.EXCERPT:
        return gone[:-1], stayed[:-1]
    return gone, stayed
