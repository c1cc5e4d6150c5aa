"""The last lines of a curation: which rules dropped most, and which sources lost over half."""

from collections import Counter
from collections.abc import Iterator, Mapping

from trainrig.corpus.report.curation_tallies import CurationTallies
from trainrig.report.number_formats import escape_invisible, format_count

RULES_SHOWN = 3
EXAMPLE = 60  # characters of an example
WARN_BELOW = 0.5  # share of a source's documents that is kept

NO_TEXT = "no_text"  # reason for a row without a text
TEXT_HINT = "`reading.fields.text` of the source names the key or column with the text"


def describe_drops(tallies: CurationTallies) -> Iterator[str]:
    """Yield a line for each of the rules that dropped most, with the start of a dropped document.

    Documents that an earlier rule dropped are not counted.
    """
    dropped: Counter[str] = Counter()
    for row in tallies.steps:
        dropped[row.step] += row.first_documents
    examples = {row.step: row for row in reversed(tallies.samples)}
    most = sorted(dropped.items(), key=lambda item: (-item[1], item[0]))[:RULES_SHOWN]
    for step, documents in most:
        if documents:
            example = examples.get(step)
            line = f"{step} dropped {format_count(documents, 'document')}"
            if example:
                line += f", such as {example.url or example.id}: {_cut(example.text)}"
            yield line


def warn_of_thin_sources(tallies: CurationTallies) -> Iterator[str]:
    """Yield a warning for each source of which less than WARN_BELOW of the documents is kept."""
    seen: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    for row in tallies.sources:
        seen[row.source] += row.seen_documents
        kept[row.source] += row.kept_documents
    for source, documents in seen.items():
        if kept[source] < WARN_BELOW * documents:
            yield (
                f"source {source}: only {kept[source]:,} of {format_count(documents, 'document')} "
                f"({kept[source] / documents:.0%}) were kept; see the report, and relax the rules "
                "if these are documents that you want"
            )


def explain_lost_records(quarantined: Mapping[str, int]) -> str | None:
    """Return what to do about records that gave no document, or None if nothing is known."""
    if number := quarantined.get(NO_TEXT):
        return f"{format_count(number, 'row')} had no text: {TEXT_HINT}"
    return None


def _cut(text: str) -> str:
    line = " ".join(escape_invisible(text).split())
    return f"“{line}”" if len(line) <= EXAMPLE else f"“{line[:EXAMPLE].rstrip()}…”"
