import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.filters.filters import Language, Length, find_broken_rules
from trainrig.corpus.filters.rule_verdicts import (
    EDGES,
    INTEGER_EDGES,
    Rule,
    Verdicts,
    build_histograms,
    decide,
    find_wiped_out,
    list_columns,
    list_rules,
    tally,
)
from trainrig.corpus.limits import Among, Limit

COLUMNS = {
    "characters": np.array([10, 500, 90, 100]),
    "share": np.array([0.1, 0.2, 0.3, np.nan]),
    "language": np.array(["en", "de", "en", ""]),
    "language_score": np.array([0.9, 0.9, 0.5, 0.0]),
    "bytes": np.array([10, 600, 90, 100]),
}
SHORT = Rule("Length.too_short", Limit("too_short", "characters", least=100))
SHARE = Rule("Share.high", Limit("high", "share", least=0.15, most=0.25))
GERMAN = Rule("Share.german", Limit("high", "share", most=0.15, languages=("de",)))
ENGLISH = Rule("Language.not_allowed", Among("not_allowed", "language", ("en",)))


def list_reasons(verdicts: Verdicts) -> list[str | None]:
    """Return the name of the first rule that each document breaks, or None."""
    return [verdicts.rules[at].name if at >= 0 else None for at in verdicts.first.tolist()]


def test_rules_are_named_by_their_filter_in_its_order() -> None:
    names = [rule.name for rule in list_rules((Length(max_characters=9_000), Language()))]
    assert names == [
        "Length.too_short",
        "Length.too_long",
        "Language.not_allowed",
        "Language.unsure",
    ]
    assert list_columns(list_rules((Length(),))) == ["bytes", "characters", "language"]


def test_two_filters_of_one_kind_are_counted_apart() -> None:
    filters = (Length(min_characters=95), Length(min_characters=400), Length(min_characters=400))
    verdicts = decide(list_rules(filters), COLUMNS, 4)
    found = tally(verdicts, COLUMNS)["rules"]
    assert {
        name: sum(row["any_documents"] for row in rows.values()) for name, rows in found.items()
    } == {
        "Length.too_short": 2,
        "Length.too_short#2": 3,
        "Length.too_short#3": 3,
    }
    assert list_reasons(verdicts) == [
        "Length.too_short",
        None,
        "Length.too_short",
        "Length.too_short#2",
    ]
    assert list(find_broken_rules(filters, COLUMNS)) == list(found)


def test_a_bound_keeps_equal_values_and_nan() -> None:
    assert decide([SHORT], COLUMNS, 4).broken[0].tolist() == [True, False, True, False]
    assert decide([SHARE], COLUMNS, 4).broken[0].tolist() == [True, False, True, False]
    assert decide([GERMAN], COLUMNS, 4).broken[0].tolist() == [False, True, False, False]
    assert decide([ENGLISH], COLUMNS, 4).broken[0].tolist() == [False, True, False, True]


def test_the_first_broken_rule_is_the_reason() -> None:
    assert list_reasons(decide([SHORT, ENGLISH], COLUMNS, 4)) == [
        SHORT.name,
        ENGLISH.name,
        SHORT.name,
        ENGLISH.name,
    ]
    assert list_reasons(decide([ENGLISH, SHORT], COLUMNS, 4))[2] == SHORT.name
    assert list_reasons(decide([], COLUMNS, 4)) == [None] * 4


def test_a_tally_counts_first_and_sole_drops_of_a_rule() -> None:
    found = tally(decide([SHORT, SHARE, ENGLISH], COLUMNS, 4), COLUMNS)
    assert found["seen"] == {
        "en": {"documents": 2, "bytes": 100},
        "de": {"documents": 1, "bytes": 600},
        "none": {"documents": 1, "bytes": 100},
    }
    assert found["passed"] == {}
    assert found["rules"][SHARE.name] == {"en": {"any_documents": 2, "any_bytes": 100}}
    assert found["rules"][ENGLISH.name]["de"] == {
        "first_documents": 1,
        "first_bytes": 600,
        "any_documents": 1,
        "any_bytes": 600,
    }


@given(st.lists(st.tuples(st.integers(0, 300), st.sampled_from(["en", "de", ""])), max_size=30))
def test_first_drops_and_the_passed_add_up_to_the_seen(
    documents: list[tuple[int, str]],
) -> None:
    columns = {
        "characters": np.array([size for size, _ in documents], np.int64),
        "bytes": np.array([size for size, _ in documents], np.int64),
        "language": np.array([language for _, language in documents], np.str_),
    }
    found = tally(decide([ENGLISH, SHORT], columns, len(documents)), columns)
    for what in ("documents", "bytes"):
        seen = sum(counts[what] for counts in found["seen"].values())
        passed = sum(counts[what] for counts in found["passed"].values())
        first = sum(
            counts.get(f"first_{what}", 0)
            for languages in found["rules"].values()
            for counts in languages.values()
        )
        assert seen == passed + first


def test_a_histogram_holds_every_number_once() -> None:
    found = build_histograms(decide([SHORT, SHARE, ENGLISH], COLUMNS, 4), COLUMNS, {"characters"})
    assert set(found) == {"characters", "share"}
    assert sum(found["characters"].values()) == 4 and sum(found["share"].values()) == 3
    for number, documents in found["characters"].items():
        least = INTEGER_EDGES[int(number)]
        below = INTEGER_EDGES[int(number) + 1]
        inside = (COLUMNS["characters"] >= least) & (COLUMNS["characters"] < below)
        assert inside.sum() == documents
    assert (np.diff(EDGES) > 0).all() and (np.diff(INTEGER_EDGES) > 0).all()


def test_counts_have_the_same_bins_with_and_without_nulls() -> None:
    some = {**COLUMNS, "characters": np.array([10, np.nan, 90, 5_000])}  # as nulls are read
    for number in (10, 90, 5_000):
        every = {**COLUMNS, "characters": np.array([number] * 4)}
        whole = build_histograms(decide([SHORT], every, 4), every, {"characters"})["characters"]
        (bin_of_number,) = whole
        parts = build_histograms(decide([SHORT], some, 4), some, {"characters"})["characters"]
        assert parts[bin_of_number] == 1
    assert sum(parts.values()) == 3


@pytest.mark.parametrize(
    ("dropped", "documents", "found"),
    [
        ({"a": 91}, 100, ("a", 91, 100)),
        ({"a": 90}, 100, None),
        ({"a": 99}, 99, None),  # a share of fewer than 100 is not reported
        ({"a": 50, "b": 46}, 100, None),  # 50 documents reach b
        ({"a": 50, "b": 140}, 200, ("b", 140, 150)),
        ({}, 100, None),
    ],
)
def test_a_step_that_takes_nearly_all_that_reaches_it_is_named(
    dropped: dict[str, int], documents: int, found: tuple[str, int, int] | None
) -> None:
    assert find_wiped_out(dropped, documents, share=0.9, least=100) == found
