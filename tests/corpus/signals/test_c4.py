"""Counts of what C4 keeps, compared with applying rewrite/c4_line_rules.py and counting."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.rewrite.c4_line_rules import C4Lines
from trainrig.corpus.signals.c4_signals import count_sentences
from trainrig.corpus.signals.text_arrays import build_batch
from trainrig.corpus.signals.text_signals import measure

PIECES = (
    *("[1]", "[edit]", "[citation needed]", "[", "]", "Hello there my good friend. ", "he said. "),
    *(
        "javaScript",
        "privacy policy",
        "Cookie Policy",
        "lorem ipsum",
        " uses cookies",
        "java[2]script",
    ),
    *("\n", "\r\n", "\x85", "a b ", "word ", ".", " . ", "...", '"', "'", "?", "!", "。", " "),
    "x" * 1001,
)


def sentences(line: str) -> int:
    batch = build_batch([line.strip()])
    return (
        count_sentences(batch.codes_C, batch.classes_C, 0, len(batch.codes_C))
        if line.strip()
        else 0
    )


def assert_equal(texts: list[str]) -> None:
    found = measure(texts, ["en"] * len(texts))
    any_end = C4Lines(reading="datatrove", terminal_punctuation=False)
    for rewrite, column in ((C4Lines(), "c4_sentences"), (any_end, "c4_sentences_any_end")):
        for number, text in enumerate(texts):
            kept, _ = rewrite.apply(text, "en")
            assert found[column][number] == sum(map(sentences, kept.split("\n"))), text


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.text(st.characters()))
def test_sentences_are_counted_in_the_remaining_lines(text: str):
    assert_equal([text])


def test_so_they_are_in_many_texts_made_to_be_cut():
    draw = random.Random(0)
    assert_equal(["".join(draw.choices(PIECES, k=draw.randrange(60))) for _ in range(300)])


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("One.", 1),
        ("no end", 1),
        ("One. Two! Three?", 3),
        ('He said "so." Then he left.', 2),
        ("It cost 3.5 dollars, e.g. for tea.", 1),
        ("Wait... what?", 1),
        ("一。二！三", 3),
        ("end.) Next", 2),
    ],
)
def test_a_sentence_ends_before_a_possible_start(line: str, count: int):
    assert sentences(line) == count


def test_lines_of_placeholder_text_are_counted():
    assert measure(["Lorem Ipsum\nlorem  ipsum\nxlorem ipsumx"], ["en"])["lorem_ipsum"] == [2]
