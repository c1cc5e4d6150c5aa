"""Check that stops a run when a step removes nearly all of a source.

Then either the rule or the source is usually wrong.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from trainrig.corpus.filters.rule_verdicts import find_wiped_out
from trainrig.corpus.report.removal_counts import CutRow
from trainrig.corpus.run_file import Curation
from trainrig.errors import DataError


def refuse_rules_that_wipe_out(run: Curation, tallies: Mapping[str, Any]) -> None:
    """Raise DataError if a rule drops nearly all documents of a source.

    `tallies` holds the counts of documents by source and rule.
    """
    for name, tally in tallies.items():
        seen = sum(counts["documents"] for counts in tally["seen"].values())
        dropped = {
            rule: sum(counts.get("first_documents", 0) for counts in languages.values())
            for rule, languages in tally["rules"].items()
        }
        refuse_wiped_out(run, name, dropped, seen)


def refuse_wiped_out(run: Curation, name: str, dropped: Mapping[str, int], documents: int) -> None:
    """Raise DataError if a step drops nearly all `documents` of source `name` that reach it.

    `dropped` holds the number of documents dropped by each step, in order.
    """
    (source,) = (source for source in run.sources if source.name == name)
    limit = source.wipe_out
    found = find_wiped_out(dropped, documents, name, limit.max_share, limit.min_documents)
    if found:
        raise DataError(
            f"{run.output}: {found.step} drops {found.dropped:,} of the {found.documents:,} "
            f"documents of source '{name}' that reach it, more than {limit.max_share:.0%} "
            "(sources.wipe_out.max_share); change the rule or raise the limit and run again, "
            "which reads no page again"
        )


def refuse_cut_away(run: Curation, rows: Iterable[CutRow]) -> None:
    """Raise DataError if a step removes nearly all text of a source."""
    sources = {source.name: source for source in run.sources}
    for row in rows:
        limit = sources[row.source].wipe_out
        if row.documents >= limit.min_documents and row.size_cut > limit.max_share * row.size:
            raise DataError(
                f"{run.output}: {row.step} removes {row.size_cut:,} of the {row.size:,} "
                f"{row.unit} of source '{row.source}' that reach it, more than "
                f"{limit.max_share:.0%} (sources.wipe_out.max_share); change its section or "
                "raise the limit and run again, which reads no page again"
            )
