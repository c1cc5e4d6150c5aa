import itertools
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import plain_decontamination as plain

from trainrig.corpus.decontaminate.benchmark_words import (
    NOT_ASKED,
    UNKNOWN,
    NormalisedWords,
    WordNumbers,
    ask_numbers,
    build_vocabulary,
    split_words,
)

ODD = (
    "aB'.-_ \n\t\u00a0\u3000\u2028ßẞİıΣσςΟΔΣ́ǅﬁÅ’“—。、①²½€$+^`|~\u200b\u0301中文字ด😀\ud800\x1c\x85"
)
texts = st.lists(st.text(st.sampled_from(ODD) | st.characters(), max_size=40), max_size=4)


def split_plainly(words: NormalisedWords) -> list[list[plain.Word]]:
    begins = [0, *words.ends_W.tolist()]
    all_words = [
        plain.Word("".join(map(chr, words.letters_L[begin:end].tolist())), start, stop)
        for begin, end, start, stop in zip(
            begins, words.ends_W, words.begins_W.tolist(), words.stops_W.tolist(), strict=False
        )
    ]
    firsts = words.firsts_D1.tolist()
    return [all_words[a:b] for a, b in itertools.pairwise(firsts)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't stop -- no, NEVER!", "dont stop no never"),
        (f"a{string.punctuation}b", "ab"),
        ("Janet’s ducks", "janets ducks"),
        ("“ΟΔΟΣ” ΣΑΣ. Σ", "οδος σας σ"),
        ("İstanbul STRAẞE", "i\u0307stanbul straße"),
        ("1,000 $5 3.5 <<16-3=13>>", "1000 5 35 16313"),
        ("一 二　三。", "一 二 三"),
        ("... — ~", ""),
    ],
)
def test_words_are_lower_case_between_spaces_without_punctuation(text: str, expected: str):
    assert [word.letters for word in split_plainly(split_words([text]))[0]] == expected.split()


@given(texts)
def test_words_equal_the_definition(texts: list[str]):
    assert split_plainly(split_words(texts)) == [plain.words(text) for text in texts]


def list_numbers(vocabulary: WordNumbers, words: NormalisedWords) -> np.ndarray:
    numbers = np.full(len(words.ends_W), NOT_ASKED)
    ask_numbers(vocabulary, words, np.arange(len(words.firsts_D1) - 1), numbers)
    return numbers


@given(texts, texts)
def test_a_word_is_known_by_its_letters(known: list[str], asked: list[str]):
    vocabulary, numbers = build_vocabulary(split_words(known))
    names = [word for text in known for word in plain.letters(text)]
    by_name = {name: number for name, number in zip(names, numbers.tolist(), strict=True)}
    assert len(set(by_name.values())) == len(by_name) == len(vocabulary.hashes_V)
    found = list_numbers(vocabulary, split_words(asked)).tolist()
    expected = [by_name.get(word, int(UNKNOWN)) for text in asked for word in plain.letters(text)]
    assert found == expected


def test_words_with_equal_hashes_are_distinguished():
    words = split_words(["one two three two"])
    alike = words._replace(hashes_W=np.full(4, 7, np.uint64))
    vocabulary, numbers = build_vocabulary(alike)
    assert numbers.tolist() == [0, 1, 2, 1]
    assert list_numbers(vocabulary, alike).tolist() == [0, 1, 2, 1]
