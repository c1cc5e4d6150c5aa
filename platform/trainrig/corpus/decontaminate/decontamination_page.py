"""Section of the curation report about benchmarks found in the corpus."""

from trainrig.corpus.decontaminate.tallies import (
    LEAST_SHARES,
    BenchmarkRow,
    ContaminationTallies,
)
from trainrig.report import (
    Details,
    ReportTable,
    SampleGroup,
    Section,
    Text,
    TextSample,
    format_percent,
)


def build_contamination_section(summary: ContaminationTallies) -> Section:
    """Build the report section: overlap found, documents removed, and a few samples."""
    return Section(
        "contamination",
        "Benchmarks in the corpus",
        (
            Text(_describe_finding(summary)),
            _build_document_table(summary),
            _build_example_table(summary),
            Details("How much of each example was found", (_build_share_table(summary),)),
            *_build_common_phrases(summary),
            *_build_samples(summary),
        ),
    )


def _describe_finding(summary: ContaminationTallies) -> str:
    touched = [row for row in summary.benchmarks if row.documents]
    unseen = sum(row.not_looked_for for row in summary.benchmarks)
    examples = sum(row.examples for row in summary.benchmarks)
    sentence = (
        f"By the rule of {summary.style}, {summary.contaminated:,} of {summary.documents:,} "
        f"documents contain text of {len(touched)} of {len(summary.benchmarks)} benchmarks."
    )
    if unseen:
        sentence += (
            f" {unseen:,} of {examples:,} examples are too short for this rule, so the corpus "
            "may contain them."
        )
    return sentence


def _build_document_table(summary: ContaminationTallies) -> ReportTable:
    rows = sorted(summary.benchmarks, key=lambda row: (-row.documents, row.benchmark))
    return ReportTable(
        "Documents that contain text of a benchmark; a document may count for several",
        ("benchmark", "documents", "dropped", "with removed spans"),
        tuple(
            (row.benchmark, row.documents, row.documents_fallen, row.documents_cut) for row in rows
        ),
    )


def _build_example_table(summary: ContaminationTallies) -> ReportTable:
    return ReportTable(
        "Benchmark examples found in the corpus before decontamination",
        (
            "benchmark",
            "n",
            "examples",
            "found",
            "share found",
            "dirty",
            "clean",
            "neither",
            "only common phrases",
            "too short",
        ),
        tuple(_list_cells(row) for row in summary.benchmarks),
    )


def _list_cells(row: BenchmarkRow) -> tuple[str | int, ...]:
    return (
        row.benchmark,
        row.words,
        row.examples,
        row.found,
        format_percent(row.found, row.examples),
        row.dirty,
        row.clean,
        row.between,
        row.common_only,
        row.not_looked_for,
    )


def _build_share_table(summary: ContaminationTallies) -> ReportTable:
    examples: dict[str, list[int]] = {}
    for row in summary.shares:
        examples.setdefault(row.benchmark, []).append(row.examples)
    return ReportTable(
        "Number of examples of which the whole corpus contains this share or more",
        ("benchmark", *(format_percent(share, 1) for share in LEAST_SHARES)),
        tuple((name, *numbers) for name, numbers in examples.items()),
    )


def _build_common_phrases(summary: ContaminationTallies) -> tuple[Details, ...]:
    if not summary.common:
        return ()
    table = ReportTable(
        "N-grams that occur in too many documents for the rule, most common first",
        ("n-gram", "documents", "in"),
        tuple((row.text, row.documents, row.benchmark) for row in summary.common),
    )
    return (Details("Common phrases, which are not removed", (table,)),)


def _build_samples(summary: ContaminationTallies) -> tuple[Details | Text, ...]:
    names = dict.fromkeys(sample.benchmark for sample in summary.samples)
    if not names:
        return (Text("No sample was stored."),)
    return tuple(
        Details(
            f"Documents that contain text of {name}",
            (
                SampleGroup(
                    tuple(
                        TextSample(
                            sample.url,
                            f"{sample.before}⟦{sample.text}⟧{sample.after}",
                            f"⟦ ⟧: also in line {sample.line} of {name}",
                        )
                        for sample in summary.samples
                        if sample.benchmark == name
                    )
                ),
            ),
        )
        for name in names
    )
