"""Tallies of hosts: the share of the main content that extraction kept of their pages.

A template that the extractor misreads is the same on all pages of a host, and the texts look
complete: nothing else shows that half of each page is missing.

A crawl of 1 TB has millions of hosts. So their counts are Arrow tables, which tasks store as
Parquet files and sum, and no host is a Python object.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

FAR_BELOW = 0.5  # a median share below this is far below 1, and worth a warning
ENOUGH_PAGES = 5  # smallest number of pages; with fewer, one odd page decides the median
HOSTS_SHOWN = 20  # hosts

# Number of documents of each host by the percentage kept, sorted by both.
HOST_COUNTS = pa.schema([("host", pa.string()), ("percent", pa.int64()), ("documents", pa.int64())])
# Table of hosts in a report, lowest median first: see `HostRow`.
HOSTS = pa.schema(
    [
        ("host", pa.string()),
        ("documents", pa.int64()),
        ("median_share", pa.float64()),
        ("below", pa.int64()),
    ]
)


@dataclass(frozen=True)
class HostRow:
    """Pages (documents) of one host for which the extractor measured the share that it kept."""

    host: str
    documents: int
    median_share: float  # rounded to a hundredth; of two middle values, the lower one
    below: int  # documents whose share is below FAR_BELOW


def build_host_counts(documents: Mapping[tuple[str, int], int]) -> pa.Table:
    """Return the numbers of documents by (host, percentage kept) as a table of HOST_COUNTS."""
    keys = sorted(documents)
    columns = [
        [host for host, _ in keys],
        [percent for _, percent in keys],
        [documents[key] for key in keys],
    ]
    return pa.table(columns, schema=HOST_COUNTS)


def sum_host_counts(tables: Iterable[pa.Table]) -> pa.Table:
    """Return the sum of tables of HOST_COUNTS."""
    together = pa.concat_tables([HOST_COUNTS.empty_table(), *tables])
    # One thread, as a worker has. With several, Arrow 26 failed once in thousands of runs: "thread
    # index 10 is out of range".
    by_host = together.group_by(["host", "percent"], use_threads=False)
    summed = by_host.aggregate([("documents", "sum")])
    renamed = summed.select(["host", "percent", "documents_sum"]).rename_columns(HOST_COUNTS.names)
    return renamed.sort_by([("host", "ascending"), ("percent", "ascending")]).combine_chunks()


def build_host_table(counts: pa.Table) -> pa.Table:
    """Return the table of HOSTS, lowest median first, of a table of HOST_COUNTS."""
    if not len(counts):
        return HOSTS.empty_table()
    host = counts["host"].combine_chunks()
    differs = pc.not_equal(host.slice(1), host.slice(0, len(host) - 1))
    first = np.flatnonzero(np.concatenate([[True], differs.to_numpy(zero_copy_only=False)]))
    documents = counts["documents"].to_numpy()
    percent = counts["percent"].to_numpy()
    totals = np.add.reduceat(documents, first)
    running = np.cumsum(documents)
    # The median of a host is at the first row where the running number reaches half of its total.
    middle = running[first] - documents[first] + (totals + 1) // 2
    columns = [
        host.take(pa.array(first)),
        totals,
        percent[np.searchsorted(running, middle)] / 100,
        np.add.reduceat(np.where(percent < 100 * FAR_BELOW, documents, 0), first),
    ]
    order = [("median_share", "ascending"), ("documents", "descending"), ("host", "ascending")]
    return pa.table(columns, schema=HOSTS).sort_by(order).combine_chunks()


def find_doubtful(hosts: pa.Table) -> pa.Table:
    """Return the hosts with enough pages whose median share is far below 1."""
    return _find_measured(hosts).filter(pc.field("median_share") < FAR_BELOW)


def describe_doubtful(hosts: pa.Table) -> str | None:
    """Describe the doubtful hosts in one sentence; None if there are none."""
    found = find_doubtful(hosts)
    if not len(found):
        return None
    shown = found.slice(0, 3).to_pylist()
    named = ", ".join(f"{row['host']} {row['median_share']:.2f}" for row in shown)
    more = ", …" if len(found) > 3 else ""
    many = "1 host" if len(found) == 1 else f"{len(found):,} hosts"
    return (
        f"the median page of {many} kept less than {FAR_BELOW} of its main content ({named}{more})"
    )


def list_lowest_hosts(hosts: pa.Table) -> list[HostRow]:
    """Return the lowest hosts with enough pages of a table of HOSTS."""
    shown = _find_measured(hosts).slice(0, HOSTS_SHOWN)
    return [HostRow(**row) for row in shown.to_pylist()]


def _find_measured(hosts: pa.Table) -> pa.Table:
    return hosts.filter(pc.field("documents") >= ENOUGH_PAGES)
