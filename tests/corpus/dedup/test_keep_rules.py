import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.dedup.keep_rules import (
    RANKS_BITS,
    WORST,
    BestSignal,
    ContentHash,
    Earliest,
    KeepFeatures,
    KeepRule,
    Longest,
    SourcePriority,
    rank_across_crawls,
)

numbers = st.floats(width=32, allow_nan=False)


def rank_documents(rule: KeepRule, source: str = "web", number: int = 0, **columns) -> list[int]:
    """Return the ranks of as many documents as a column has."""
    count = max((len(column) for column in columns.values()), default=1)
    characters = np.array(columns.pop("characters", [9] * count), np.int64)
    digests = np.array(columns.pop("digests", [[7] * 16] * count), np.uint8)
    measured = KeepFeatures(
        characters,
        digests,
        source,
        number,
        {name: np.array(values) for name, values in columns.items()},
    )
    ranks = rule.rank_documents(measured)
    assert ranks.dtype == np.uint64
    return ranks.tolist()


def best_first(ranks: list[int]) -> list[int]:
    return sorted(range(len(ranks)), key=ranks.__getitem__)


def test_the_longest_comes_first_however_long():
    ranks = rank_documents(Longest(), characters=[3, 2**50, 0, 70])
    assert best_first(ranks) == [1, 3, 0, 2]


def test_the_lowest_digest_comes_first():
    digests = [[2] + [0] * 15, [1] + [255] * 15, [1] + [0] * 15]
    assert best_first(rank_documents(ContentHash(), digests=digests)) == [2, 1, 0]


@given(st.lists(numbers, min_size=1), st.booleans())
def test_the_best_signal_comes_first_and_equal_ones_are_equal(values, highest):
    ranks = rank_documents(BestSignal(signal="score", highest=highest), score=values)
    for one, rank in zip(values, ranks, strict=True):
        for other, its_rank in zip(values, ranks, strict=True):
            better = one > other if highest else one < other
            assert (rank < its_rank) == better


def test_without_a_signal_a_document_comes_last():
    ranks = rank_documents(BestSignal(signal="score"), score=[np.nan, -np.inf, 3.0])
    assert best_first(ranks) == [2, 1, 0]
    assert ranks[0] == WORST


def test_signals_are_compared_as_float32_whatever_they_are_stored_as():
    ranks = rank_documents(
        BestSignal(signal="score"), score=np.array([0.1, 0.1 + 1e-12], np.float64)
    )
    assert ranks[0] == ranks[1]
    assert best_first(rank_documents(BestSignal(signal="words"), words=np.array([3, 9]))) == [1, 0]


def test_the_earliest_date_comes_first_and_none_last():
    dates = ["2024-05-18T01:58:11Z", "", "2024-05-18T01:58:10Z", "2023", "no date", "1996-01-01"]
    ranks = rank_documents(Earliest(), date=dates)
    assert best_first(ranks) == [5, 3, 2, 0, 1, 4]
    assert ranks[1] == ranks[4] == WORST


def test_by_crawl_the_order_of_sources_and_of_crawls_decides():
    rule = Earliest(by="crawl")
    first = rank_documents(rule, number=0)
    second = rank_documents(rule, number=1)
    assert first < second
    later = rank_across_crawls(rule, np.array(first, np.uint64), crawl=1).tolist()
    assert second < later < rank_across_crawls(rule, np.array(second, np.uint64), crawl=1).tolist()
    inside = SourcePriority(sources=("web",), next=rule)
    assert rank_across_crawls(inside, np.array([5], np.uint64), crawl=2)[0] > 5
    assert rank_across_crawls(Longest(), np.array([5], np.uint64), crawl=2)[0] == 5


def test_the_source_named_first_comes_first_then_the_next_rule():
    rule = SourcePriority(sources=("books", "web"), next=Longest())
    short_book = rank_documents(rule, "books", characters=[1])[0]
    long_page, short_page = rank_documents(rule, "web", characters=[500, 5])
    other = rank_documents(rule, "else", characters=[10**9])[0]
    assert short_book < long_page < short_page < other


@pytest.mark.parametrize(
    "rule", [Longest(), ContentHash(), BestSignal(signal="score"), Earliest(), Earliest(by="crawl")]
)
def test_a_rule_leaves_room_for_the_source(rule):
    column = {"score": [-np.inf, np.inf, np.nan], "date": ["0000-01-01", "9999-12-31", "-5"]}
    digests = [[0] * 16, [255] * 16, [9] * 16]
    given = {name: column[name] for name in rule.columns}
    ranks = rank_documents(rule, characters=[0, 2**60, 5], digests=digests, **given)
    assert max(ranks) < 2**RANKS_BITS
