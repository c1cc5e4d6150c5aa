import pytest

from trainrig.corpus.report.curation_tallies import (
    HostRow,
    build_host_rows,
    describe_doubtful,
    find_doubtful,
    list_lowest_hosts,
)

TOLD = {
    "whole.example": {"100": 5, "97": 1},
    "thin.example": {"31": 3, "30": 1, "90": 2},
    "small.example": {"10": 4},
    "half.example": {"50": 5},
}


def test_hosts_are_sorted_by_median_lowest_first() -> None:
    assert build_host_rows(TOLD) == (
        HostRow("small.example", 4, 0.1, 4),
        HostRow("thin.example", 6, 0.31, 4),
        HostRow("half.example", 5, 0.5, 0),
        HostRow("whole.example", 6, 1.0, 0),
    )


def test_a_host_with_enough_pages_is_warned_about_by_its_median() -> None:
    assert [row.host for row in find_doubtful(build_host_rows(TOLD))] == ["thin.example"]
    told = describe_doubtful(build_host_rows(TOLD))
    assert told is not None
    assert told.startswith("the median page of 1 host kept less than 0.5")
    assert "(thin.example 0.31)" in told


@pytest.mark.parametrize("told", [{}, {"whole.example": {"100": 9}}, {"a.example": {"0": 4}}])
def test_nothing_is_warned_of_where_pages_are_whole_or_few(told: dict[str, dict[str, int]]) -> None:
    assert describe_doubtful(build_host_rows(told)) is None


def test_the_report_shows_hosts_of_enough_pages() -> None:
    shown = [row.host for row in list_lowest_hosts(build_host_rows(TOLD))]
    assert shown == ["thin.example", "half.example", "whole.example"]
