"""datatrove's signals compared with plain Python's; benchmarks compare with datatrove."""

import random
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("spacy")

from trainrig.corpus.filters.published_rules import PREFIX
from trainrig_contrib.datatrove_signals.datatrove_columns import (
    DATATROVE_SIGNALS,
    measure_datatrove,
)
from trainrig_contrib.datatrove_signals.spacy_splitting import load_spacy_words

PIECES = (
    *("a ", "the ", "of ", "word ", "Inc. ", "can't ", "(so) ", "1,000 ", "end. ", "- ", "• "),
    *(
        "A line of text.\n",
        "a b c d e f ",
        "{",
        "lorem ipsum ",
        "\n",
        "\n\n",
        "…",
        "...",
        " \t",
        "\r\n",
    ),
    *("\xa0", "#", "It ends here. Or here!\n", "cookie policy\n", "[1]"),
)
texts = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


def measure(text: str) -> dict[str, float]:
    return {name: column[0].item() for name, column in measure_datatrove([text]).items()}


def split_words(text: str) -> list[str]:
    return [
        token.text for sentence in load_spacy_words().tokenize(text.split()) for token in sentence
    ]


def duplicates(pieces: list[str]) -> tuple[int, int]:
    again = [piece for number, piece in enumerate(pieces) if piece in pieces[:number]]
    return len(again), sum(map(len, again))


def top(words: list[str], n: int) -> int:
    grams = [" ".join(words[first : first + n]) for first in range(len(words) - n + 1)]
    return max(((len(gram) * count) for gram, count in Counter(grams).most_common(1)), default=0)


def repeated(words: list[str], n: int) -> int:
    seen = set()
    characters = 0
    first = 0
    while first + n <= len(words):
        gram = tuple(words[first : first + n])
        again = gram in seen
        characters += again * sum(map(len, gram))
        seen.add(gram)
        first += n if again else 1
    return characters


def assert_equal(text: str) -> None:
    found = measure(text)
    words = split_words(text)
    by_text = lambda part: part / len(text)  # noqa: E731
    for n in (2, 3, 4):
        assert found[f"{PREFIX}top_{n}_gram"] == by_text(top(words, n))
    for n in range(5, 11):
        assert found[f"{PREFIX}duplicate_{n}_grams"] == by_text(repeated(words, n))
    lines = re.split("\n+", text)
    paragraphs = re.split("\n{2,}", text.strip())
    for name, pieces in (("line", lines), ("paragraph", paragraphs)):
        count, characters = duplicates(pieces)
        assert found[f"{PREFIX}duplicate_{name}s"] == count / len(pieces)
        assert found[f"{PREFIX}duplicate_{name}_characters"] == by_text(characters)
    starts = [line.lstrip()[:1] for line in text.splitlines()]
    assert found[f"{PREFIX}bullet_lines"] == sum(start in ("•", "-") for start in starts) / len(
        starts
    )
    full = [line for line in text.split("\n") if line.strip()]
    if full:
        assert found[f"{PREFIX}short_lines"] == sum(len(line) <= 30 for line in full) / len(full)
        share = duplicates(full)[1] / len(text.replace("\n", ""))
        assert found[f"{PREFIX}fineweb_duplicate_line_characters"] == share
    if words:
        assert found[f"{PREFIX}new_lines_per_word"] == text.count("\n") / len(words)


@pytest.mark.slow
@given(texts.filter(bool))
def test_counts_equal_plain_python(text: str):
    assert_equal(text)


def test_so_they_are_in_long_texts():
    draw = random.Random(0)
    for _ in range(60):
        assert_equal("".join(draw.choices(PIECES, k=draw.randrange(1, 400))))


@given(st.text(st.characters()))
def test_any_text_has_every_column(text: str):
    found: dict[str, Any] = measure_datatrove([text])
    assert {name: column.dtype for name, column in found.items()} == DATATROVE_SIGNALS


def test_empty_and_blank_texts_are_dropped_where_datatrove_drops_them():
    found = measure_datatrove(["", " \n"])
    assert found[f"{PREFIX}duplicate_lines"][0] == 1.0
    assert found[f"{PREFIX}terminal_lines"].tolist() == [0.0, 0.0]
    assert np.isnan(found[f"{PREFIX}mean_word_length"]).all()


def test_sentences_are_of_lines_that_stay():
    found = measure("One two three. Four five six\ntoo short.\nuse cookies or do not use them.")
    assert (found[f"{PREFIX}c4_sentences"], found[f"{PREFIX}c4_sentences_any_end"]) == (0, 2)
    assert measure('He said "so it is." Then, well.')[f"{PREFIX}c4_sentences"] == 2


def test_a_page_is_dropped_by_its_remaining_lines():
    code = "void main() { return; }\nlorem ipsum dolor."
    found = measure(code)
    assert found[f"{PREFIX}curly_brackets"] == 0  # the line has no end mark
    assert found[f"{PREFIX}curly_brackets_any_end"] == 1
    assert found[f"{PREFIX}lorem_ipsum"] == 1
