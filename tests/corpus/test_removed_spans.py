import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.removed_spans import (
    Removed,
    RemovedSpan,
    make_disjoint,
    map_to_original,
    remove_spans,
    restore,
)

texts = st.text(st.sampled_from("ab\n é\U0001f600"), max_size=30)


@st.composite
def texts_and_cuts(draw: st.DrawFn) -> tuple[str, list[RemovedSpan]]:
    text = draw(texts.filter(bool))
    spans = st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))
    pairs = draw(st.lists(spans.filter(lambda pair: pair[0] < pair[1]), max_size=8))
    return text, [
        RemovedSpan(a, b, draw(st.sampled_from(["lines", "substrings"]))) for a, b in pairs
    ]


@given(texts_and_cuts())
def test_removed_spans_can_be_restored(given_):
    text, cuts = given_
    assert restore(*remove_spans(text, cuts)) == text


@given(texts_and_cuts())
def test_the_union_of_the_cuts_goes_and_nothing_else(given_):
    text, cuts = given_
    claimed = {place for span in cuts for place in range(span.start, span.end)}
    left, removed = remove_spans(text, cuts)
    assert left == "".join(c for place, c in enumerate(text) if place not in claimed)
    assert sum(len(span.text) for span in removed) == len(claimed)


@given(texts_and_cuts(), st.randoms(use_true_random=False))
def test_the_order_of_cuts_does_not_matter(given_, random):
    text, cuts = given_
    shuffled = list(cuts)
    random.shuffle(shuffled)
    assert remove_spans(text, shuffled) == remove_spans(text, cuts)


@given(texts_and_cuts())
def test_disjoint_spans_stay_unchanged(given_):
    _, cuts = given_
    assert make_disjoint(make_disjoint(cuts)) == make_disjoint(cuts)


@given(texts_and_cuts(), st.data())
def test_cuts_of_two_steps_can_be_made_at_once(given_, data):
    text, first = given_
    left, removed = remove_spans(text, first)
    span = st.tuples(st.integers(0, len(left)), st.integers(0, len(left)))
    pairs = data.draw(st.lists(span.filter(lambda pair: pair[0] < pair[1]), max_size=4))
    second = [RemovedSpan(start, end, "later") for start, end in pairs]
    at_once, all_removed = remove_spans(text, [*first, *map_to_original(second, removed)])
    assert at_once == remove_spans(left, second)[0]
    assert [span for span in all_removed if span.by != "later"] == removed


def test_a_character_goes_to_the_cut_that_starts_first_and_then_to_the_longest():
    cuts = [
        RemovedSpan(2, 6, "b"),
        RemovedSpan(0, 3, "a"),
        RemovedSpan(0, 4, "c"),
        RemovedSpan(1, 2, "b"),
    ]
    assert remove_spans("0123456789", cuts) == (
        "6789",
        [Removed(0, "0123", "c"), Removed(4, "45", "b")],
    )


def test_spans_of_one_step_that_touch_are_one():
    assert remove_spans("abcdef", [RemovedSpan(3, 5, "a"), RemovedSpan(1, 3, "a")]) == (
        "af",
        [Removed(1, "bcde", "a")],
    )


def test_a_text_may_be_removed_entirely_or_kept():
    assert remove_spans("abc", [RemovedSpan(0, 3, "a")]) == ("", [Removed(0, "abc", "a")])
    assert remove_spans("abc", []) == ("abc", [])


@pytest.mark.parametrize(("start", "end"), [(3, 3), (-1, 2), (4, 2)])
def test_invalid_spans_are_refused(start: int, end: int):
    with pytest.raises(ValueError, match=f"from {start} to {end}"):
        RemovedSpan(start, end, "a")


def test_a_cut_beyond_the_text_is_refused():
    with pytest.raises(ValueError, match="ends at 4, but the text has 3"):
        remove_spans("abc", [RemovedSpan(1, 4, "a")])
