"""RefinedWeb's line rules, compared with a line-by-line reference and cases by hand."""

import re
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainrig.corpus.rewrite.refinedweb_line_rules import LineShapes, RefinedWebLines

pieces = st.sampled_from(
    [
        *("the cat sat on a mat", "word", "TWO WORDS", "É", "ǅ", "𝐀", "１", "²", " ", "\t", "\n"),
        *("3 likes", "1.2k Views", "12", "3,000", "·", "sign-in", "Sign-In ", "items in cart"),
        *(" Read more...", "READ MORE...", "\xa0", "\u2028", "\x1c", "\ud800", "\U000e0001"),
    ]
)
texts = st.one_of(st.lists(pieces, max_size=20).map("".join), st.text(st.characters()))


PHRASES = (r"\Asign-in(?!\w)", r"(?<!\w)read more\.\.\.\Z", r"(?<!\w)items in cart(?!\w)")


def without_phrases(line: str) -> str:
    for phrase in PHRASES:
        line = re.sub(phrase, "", line, flags=re.ASCII | re.IGNORECASE).strip()
    return line


def rule_broken_by(line: str) -> str | None:
    words = line.split()
    if sum(sign.isupper() for sign in line) > len(line) / 2:
        return "refinedweb_upper_case"
    if all(word.isdigit() for word in words):
        return "refinedweb_numeric"
    counter = r"\W*[0-9][0-9.,]*\s?[kmb]?\s+(likes?|views?)\W*"
    if len(words) <= 4 and re.fullmatch(counter, line, flags=re.IGNORECASE):
        return "refinedweb_counters"
    return "refinedweb_few_words" if len(words) < 2 else None


def clean_by_reference(text: str) -> tuple[list[str], Counter[str]]:
    """Return the lines that stay, and counts of the others, one line after another."""
    kept = []
    counts = Counter()
    for line in text.split("\n"):
        left = line.strip()
        if len(left.split()) <= 10:
            while (shorter := without_phrases(left)) != left:
                left = shorter
        rule = left and rule_broken_by(left)
        if left != line.strip():
            counts["refinedweb_cuts"] += 1
            line = left
        if rule:
            counts[rule] += 1
        elif left or not line.strip():
            kept.append(line)
    return kept, counts


@given(texts)
@example("sign-in items in cart\nsign-in one two READ MORE...\nSIGN-IN, one two")
@example("items in items in cart cart now")
def test_lines_are_dropped_as_one_by_one(text: str):
    rules = RefinedWebLines()
    left, counts = rules.apply(text, "en")
    lines, expected = clean_by_reference(text)
    assert [line for line in left.split("\n") if line.strip()] == [
        line for line in lines if line.strip()
    ]
    for column in rules.columns[:5]:
        assert counts[column] == expected[column]
    assert counts["refinedweb_words"] == len(text.split())
    assert counts["refinedweb_removed_words"] == len(text.split()) - len(left.split())
    assert tuple(counts) == rules.columns


@given(texts)
def test_cleaned_text_stays_unchanged(text: str):
    left, _ = RefinedWebLines().apply(text, "en")
    again, counts = RefinedWebLines().apply(left, "en")
    assert again == left
    assert +Counter(counts) == +Counter({"refinedweb_words": len(left.split())})


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("The cat sat on the mat.", "The cat sat on the mat."),
        ("TODAY ONLY: BUY now", ""),
        ("  ABCD ef  ", ""),
        ("Home\n\nThe cat sat.\n\nHome", "The cat sat."),
        ("2024", ""),
        ("12 34 56", ""),
        ("3 likes", ""),
        ("♥ 1.2K Views", ""),
        ("3 views of the mountain", "3 views of the mountain"),
        ("Home", ""),
        ("Sign-in to see more", "to see more"),
        ("The cat sat. Read more...", "The cat sat."),
        ("The cat sat. Read more about it", "The cat sat. Read more about it"),
        ("You have 3 items in cart now", "You have 3  now"),
        ("one two three four five six seven eight nine Read more...",) * 2,
        ("Items in cart", ""),
    ],
)
def test_lines_by_hand(line: str, left: str):
    assert RefinedWebLines().apply(line, "en")[0] == left


def test_the_share_removed_is_counted_in_ten_thousandths():
    text = "\n".join(["one two three four five six seven eight nine"] * 2 + ["3 likes"])
    _, counts = RefinedWebLines().apply(text, "en")
    assert counts["refinedweb_removed_words"] == 2
    assert counts["refinedweb_words"] == 20
    assert counts["refinedweb_removed_per_10000"] == 1000


def test_blank_lines_between_paragraphs_stay():
    text = "One two three.\n\nHome\n\nFour five six."
    left, _ = RefinedWebLines().apply(text, "en")
    assert left == "One two three.\n\n\nFour five six."


@pytest.mark.parametrize("phrase", ["", " ", "read more ", "two\nlines"])
def test_a_phrase_that_no_line_could_hold_is_refused(phrase: str):
    with pytest.raises(ValidationError):
        RefinedWebLines(anywhere=(phrase,))


@given(texts)
def test_character_classes_equal_pythons(text: str):
    shapes = LineShapes.of(text)
    lines = text.split("\n")
    assert shapes.words.tolist() == [len(line.split()) for line in lines]
    assert shapes.visible.tolist() == [len("".join(line.split())) for line in lines]
    assert shapes.capitals.tolist() == [sum(map(str.isupper, line)) for line in lines]
    assert shapes.lengths.tolist() == [len(line.strip()) for line in lines]
    assert shapes.digits.tolist() == [sum(map(str.isdigit, line)) for line in lines]


@pytest.mark.parametrize("text", ["1", ".", "1,", " ", "A ", "sign-in ", "1 likes ", "items in "])
def test_no_text_takes_more_than_linear_time(text: str):
    RefinedWebLines().apply(text * 200_000, "en")
    RefinedWebLines().apply(f"{text * 200_000}x", "en")
