"""The HTML report of a curation, a pure function of its tallies.

It shows what was dropped and why, by rule, source and language; the thresholds within the
distribution of each signal; samples of dropped documents for each rule; near-duplicates with their
differences; and what could not be read.
"""

import difflib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from trainrig import report
from trainrig.corpus.dedup import MinHash
from trainrig.corpus.filters.rule_verdicts import Rule
from trainrig.corpus.report import curation_charts, curation_tallies
from trainrig.report import (
    Chart,
    Details,
    ReportTable,
    SampleGroup,
    Section,
    Text,
    TextSample,
    format_duration,
    format_percent,
    format_short,
)

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
    summary: curation_tallies.CurationTallies,
    counts: Mapping[str, Any],
    rules: Mapping[str, Sequence[Rule]],
    cost: Mapping[str, float],
    provenance: Mapping[str, Mapping[str, str]],
    near: MinHash,
    more: tuple[Section, ...] = (),
) -> str:
    """Render the report as HTML text.

    `rules` are those of each source, `counts` and `cost` those of the manifest, `near` the settings
    of the search for near-duplicates. `more` are sections about spans removed from documents.
    """
    seen = counts["documents_extracted"]
    page = report.ReportPage(
        title="Curation",
        verdict=_build_verdict(summary, counts),
        figures=_build_key_figures(counts, cost),
        sections=(
            Section("dropped", "Dropped documents by rule", _chart_dropped(summary, seen)),
            Section("sources", "By source and language", (_build_source_table(summary),)),
            Section(
                "signals", "Signals and their thresholds", _build_signal_details(summary, rules)
            ),
            Section("samples", "Samples of dropped documents", _build_samples(summary)),
            _build_copies_section(summary, near),
            *more,
            curation_tallies.build_hosts_section(summary.hosts),
            Section(
                "quarantine", "Records without a document", (_build_quarantine_table(summary),)
            ),
        ),
        commands=(
            report.PageCommand(
                "trainrig curate RUN.toml --set …",
                "Apply other thresholds",
            ),
            report.PageCommand(
                "trainrig tokenizer RUN.toml", "Train a tokenizer on the kept documents"
            ),
        ),
        provenance=provenance,
    )
    return page.render_html()


def _build_verdict(
    summary: curation_tallies.CurationTallies, counts: Mapping[str, Any]
) -> report.Verdict:
    kept = counts["documents_kept"]
    came = counts["documents_in"]
    idle = [
        step for step, (_, any_) in curation_charts.sum_steps(summary.steps).items() if not any_
    ]
    warnings = []
    if idle:
        some = ", ".join(idle[:4]) + (", …" if len(idle) > 4 else "")
        rules = "1 rule" if len(idle) == 1 else f"{len(idle)} rules"
        warnings.append(f"{rules} would drop no document: {some}.")
    if thin := curation_tallies.describe_doubtful(summary.hosts):
        warnings.append(f'{thin[0].upper()}{thin[1:]}. See "How much of the pages was extracted".')
    lost = sum(row.records for row in summary.quarantine)
    if lost > came / 2:
        warnings.append(
            f'{format_percent(lost, came)} of the records gave no document. See "Records without '
            'a document".'
        )
    state: Literal["done", "warning"] = "warning" if lost > came / 2 else "done"
    sentence = f"{kept:,} of {came:,} records were kept as documents: {format_percent(kept, came)}."
    return report.Verdict(sentence, state, tuple(warnings))


def _build_key_figures(
    counts: Mapping[str, Any], cost: Mapping[str, float]
) -> tuple[report.KeyFigure, ...]:
    kept = counts["documents_kept"]
    came = counts["documents_in"]
    a_second = came / cost["cpu_seconds"] if cost["cpu_seconds"] else 0.0
    return (
        report.KeyFigure(
            "Records in", f"{came:,}", "", f"{format_short(cost['page_bytes'])} bytes"
        ),
        report.KeyFigure(
            "Extracted",
            f"{counts['documents_extracted']:,}",
            "documents",
            f"{format_percent(counts['documents_extracted'], came)} of the records",
        ),
        report.KeyFigure(
            "Kept",
            f"{kept:,}",
            "documents",
            f"{format_percent(kept, counts['documents_extracted'])} of the extracted documents",
        ),
        report.KeyFigure(
            "Text kept",
            format_short(counts["bytes_kept"]),
            "bytes",
            f"about {format_short(counts['bytes_kept'] / curation_tallies.BYTES_PER_TOKEN)} "
            f"tokens, at {curation_tallies.BYTES_PER_TOKEN} bytes per token",
        ),
        report.KeyFigure(
            "Speed",
            format_short(a_second),
            "records/s per core",
            f"{format_duration(cost['cpu_seconds'])} of CPU time to read, extract and measure",
        ),
        report.KeyFigure(
            "Memory",
            f"{cost['peak_bytes'] / 2**20:,.0f}",
            "MiB",
            "peak resident memory of one process",
        ),
    )


def _chart_dropped(
    summary: curation_tallies.CurationTallies, seen: int
) -> tuple[Chart | Text, ...]:
    if not any(row.any_documents for row in summary.steps):
        return (Text("No document was dropped: no rule is set, or no document breaks one."),)
    return (curation_charts.build_steps_chart(summary, seen),)


def _build_source_table(summary: curation_tallies.CurationTallies) -> ReportTable:
    return ReportTable(
        "Documents and bytes by source and language. Tokens are estimated at "
        f"{curation_tallies.BYTES_PER_TOKEN} bytes per token, which depends on language and "
        "vocabulary.",
        (
            "source",
            "language",
            "seen",
            "kept",
            "share kept",
            "extracted: bytes",
            "kept: bytes",
            "kept: tokens (estimated)",
        ),
        tuple(
            (
                row.source,
                row.language,
                row.seen_documents,
                row.kept_documents,
                format_percent(row.kept_documents, row.seen_documents),
                row.seen_bytes,
                row.kept_bytes,
                round(row.kept_bytes / curation_tallies.BYTES_PER_TOKEN),
            )
            for row in sorted(summary.sources, key=lambda row: (row.source, -row.seen_documents))
        ),
    )


def _build_signal_details(
    summary: curation_tallies.CurationTallies, rules: Mapping[str, Sequence[Rule]]
) -> tuple[Details | Text, ...]:
    charts = curation_charts.build_signal_charts(summary, rules)
    if not charts:
        return (Text("No rule has a numeric threshold."),)
    return tuple(Details(chart.title, (chart,)) for chart in charts)


def _build_samples(summary: curation_tallies.CurationTallies) -> tuple[Details | Text, ...]:
    by_step: dict[str, list[curation_tallies.SampleRow]] = defaultdict(list)
    for row in summary.samples:
        by_step[row.step].append(row)
    if not by_step:
        return (
            Text("No document was dropped, or dropped texts were not stored (`keep_dropped`)."),
        )
    return tuple(
        Details(
            step,
            (SampleGroup(tuple(TextSample(row.url, row.text, row.language) for row in rows)),),
        )
        for step, rows in by_step.items()
    )


def _build_copies_section(summary: curation_tallies.CurationTallies, near: MinHash) -> Section:
    blocks: list[Chart | Details | Text] = [curation_charts.chart_matches(near)]
    if summary.pairs:
        blocks.append(
            Text("Near-duplicates and the documents kept instead, with differences marked:")
        )
    for row in summary.pairs:
        gone, stayed = find_differences(row.text, row.kept_text)
        # the end of an excerpt is no difference
        if max(len(row.text), len(row.kept_text)) >= curation_tallies.EXCERPT:
            gone = gone[:-1]
            stayed = stayed[:-1]
        fell = TextSample(row.url, row.text, "dropped", gone)
        kept = TextSample(row.kept_url, row.kept_text, "kept", stayed)
        title = f"{row.url}: {row.similarity:.3f} of all shingles are shared"
        blocks.append(Details(title, (SampleGroup((fell, kept)),)))
    return Section("copies", "Near-duplicates", tuple(blocks))


def _build_quarantine_table(summary: curation_tallies.CurationTallies) -> ReportTable | Text:
    if not summary.quarantine:
        return Text("Every record gave a document.")
    return ReportTable(
        "Records by the reason why they gave no document; quarantine/*.jsonl lists every record",
        ("reason", "records"),
        tuple((row.reason, row.records) for row in summary.quarantine),
    )
