"""Shares of the main content that extraction kept, by host.

A template that the extractor misreads is the same on all pages of a host, and the texts look
complete: nothing else shows that half of each page is missing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainrig.report import ReportTable, Section, Text

FAR_BELOW = 0.5  # a median share below this is far below 1, and worth a warning
ENOUGH = 5  # smallest number of pages; with fewer, one odd page decides the median
SHOWN = 20  # hosts


@dataclass(frozen=True)
class HostRow:
    """Pages (documents) of one host for which the extractor measured the share that it kept."""

    host: str
    documents: int
    median_share: float  # rounded to a hundredth
    below: int  # documents whose share is below FAR_BELOW


def build_host_rows(counts_by_host: Mapping[str, Mapping[str, int]]) -> tuple[HostRow, ...]:
    """Build a row per host, lowest median first.

    `counts_by_host`: the number of documents of each host, by the percentage kept as a string.
    """
    shares = {
        host: Counter({int(percent): documents for percent, documents in counts.items()})
        for host, counts in counts_by_host.items()
    }
    rows = (
        HostRow(
            host,
            counts.total(),
            _median(counts) / 100,
            sum(n for percent, n in counts.items() if percent < 100 * FAR_BELOW),
        )
        for host, counts in shares.items()
    )
    return tuple(sorted(rows, key=lambda row: (row.median_share, -row.documents, row.host)))


def _median(counts: Counter[int]) -> int:
    """Return the median, the lower of two middle values."""
    remaining = (counts.total() + 1) // 2
    for percent in sorted(counts):
        remaining -= counts[percent]
        if remaining <= 0:
            return percent
    raise AssertionError("a host without pages")


def find_doubtful(rows: Sequence[HostRow]) -> list[HostRow]:
    """Return the hosts with enough pages whose median share is far below 1."""
    return [row for row in rows if row.documents >= ENOUGH and row.median_share < FAR_BELOW]


def describe_doubtful(rows: Sequence[HostRow]) -> str | None:
    """Describe the doubtful hosts in one sentence; None if there are none."""
    found = find_doubtful(rows)
    if not found:
        return None
    named = ", ".join(f"{row.host} {row.median_share:.2f}" for row in found[:3])
    more = ", …" if len(found) > 3 else ""
    hosts = "1 host" if len(found) == 1 else f"{len(found):,} hosts"
    return (
        f"the median page of {hosts} kept less than {FAR_BELOW} of its main content ({named}{more})"
    )


def build_hosts_section(rows: Sequence[HostRow]) -> Section:
    """Build the report section with the lowest hosts of `rows`, which `build_host_rows` sorted."""
    return Section("extraction", "How much of the pages was extracted", (_render_block(rows),))


def _render_block(rows: Sequence[HostRow]) -> ReportTable | Text:
    worst = [row for row in rows if row.documents >= ENOUGH][:SHOWN]
    if not worst:
        return Text(f"No host has {ENOUGH} pages with a measured share of kept content.")
    return ReportTable(
        f"Share of the main content that was kept (extracted_share): the {len(worst):,} lowest "
        f"medians among hosts with at least {ENOUGH} pages. The report warns of hosts below "
        f"{FAR_BELOW}; tallies/hosts.parquet lists all hosts",
        ("host", "documents", "median share", f"documents below {FAR_BELOW}"),
        tuple((row.host, row.documents, row.median_share, row.below) for row in worst),
    )
