from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.report.curation_page import find_differences

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "\n", "dd"]), max_size=12).map(" ".join)


def marked(text: str, spans: tuple[tuple[int, int], ...]) -> list[str]:
    return [text[start:end] for start, end in spans]


def test_words_that_only_one_of_two_texts_has_are_found_in_it():
    one = "The bridge was built in 1891 by hand."
    other = "The old bridge was built in 1892 by hand."
    gone, stayed = find_differences(one, other)
    assert marked(one, gone) == ["1891"]
    assert marked(other, stayed) == ["old", "1892"]


@given(TEXTS, TEXTS)
def test_both_texts_have_the_same_words_without_the_differences(one, other):
    def rest(text: str, spans: tuple[tuple[int, int], ...]) -> list[str]:
        for start, end in reversed(spans):
            text = text[:start] + " " + text[end:]
        return text.split()

    gone, stayed = find_differences(one, other)
    assert rest(one, gone) == rest(other, stayed)
    assert find_differences(one, one) == ((), ())
