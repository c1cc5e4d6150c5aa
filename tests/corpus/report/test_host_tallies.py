import random
from collections import Counter

import pyarrow as pa
import pytest

from trainrig.corpus.report.host_tallies import (
    HOST_COUNTS,
    HostRow,
    build_host_counts,
    build_host_table,
    describe_doubtful,
    find_doubtful,
    list_lowest_hosts,
    sum_host_counts,
)

TOLD = {
    ("whole.example", 100): 5,
    ("whole.example", 97): 1,
    ("thin.example", 31): 3,
    ("thin.example", 30): 1,
    ("thin.example", 90): 2,
    ("small.example", 10): 4,
    ("half.example", 50): 5,
}


def build(told: dict[tuple[str, int], int]) -> pa.Table:
    return build_host_table(build_host_counts(told))


def test_hosts_are_sorted_by_median_lowest_first() -> None:
    assert [HostRow(**row) for row in build(TOLD).to_pylist()] == [
        HostRow("small.example", 4, 0.1, 4),
        HostRow("thin.example", 6, 0.31, 4),
        HostRow("half.example", 5, 0.5, 0),
        HostRow("whole.example", 6, 1.0, 0),
    ]


def test_medians_of_summed_tables_are_those_of_all_documents() -> None:
    draw = random.Random(1)
    documents = [(f"h{draw.randrange(30)}.ex\u00e4mple", draw.randrange(101)) for _ in range(500)]
    parts = [build_host_counts(Counter(documents[n::7])) for n in range(7)]
    counts = sum_host_counts(parts)
    assert counts == build_host_counts(Counter(documents))
    shares: dict[str, list[int]] = {}
    for host, percent in sorted(documents):
        shares.setdefault(host, []).append(percent)
    rows = [
        HostRow(host, len(found), found[(len(found) - 1) // 2] / 100, sum(n < 50 for n in found))
        for host, found in shares.items()
    ]
    rows.sort(key=lambda row: (row.median_share, -row.documents, row.host))
    assert [HostRow(**row) for row in build_host_table(counts).to_pylist()] == rows
    assert sum_host_counts([]) == HOST_COUNTS.empty_table()


def test_a_host_with_enough_pages_is_warned_about_by_its_median() -> None:
    assert find_doubtful(build(TOLD))["host"].to_pylist() == ["thin.example"]
    told = describe_doubtful(build(TOLD))
    assert told is not None
    assert told.startswith("the median page of 1 host kept less than 0.5")
    assert "(thin.example 0.31)" in told


@pytest.mark.parametrize("told", [{}, {("whole.example", 100): 9}, {("a.example", 0): 4}])
def test_nothing_is_warned_of_where_pages_are_whole_or_few(
    told: dict[tuple[str, int], int],
) -> None:
    assert describe_doubtful(build(told)) is None


def test_the_report_shows_hosts_of_enough_pages() -> None:
    shown = [row.host for row in list_lowest_hosts(build(TOLD))]
    assert shown == ["thin.example", "half.example", "whole.example"]
