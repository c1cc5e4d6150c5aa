import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from support.reference_bpe import encode, merge_pair, train
from tokenizers import models, pre_tokenizers, trainers

SPACE = "␣"
EXAMPLE = "low low low lower lower newest newest newest widest"

alphabets = st.sampled_from(["a", "ab", "abc", "dacb", "zéa猫"])
some_words = alphabets.flatmap(
    lambda letters: st.lists(st.text(letters, min_size=1, max_size=8), min_size=1, max_size=12)
)


def library_bpe(words: list[str], merges: int, alphabet: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + merges, initial_alphabet=list(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator([" ".join(words)], trainer)
    return tokenizer


def list_merges(tokenizer: tokenizers.Tokenizer) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


def split_words(text: str) -> list[str]:
    first, *others = text.split(" ")
    return [first, *(SPACE + word for word in others)]


def test_a_worked_example_of_merges_by_first_occurrence():
    learned = train(split_words(EXAMPLE), 6, "first_seen")
    assert learned == [
        ("l", "o"),
        ("lo", "w"),
        (SPACE, "low"),
        ("e", "s"),
        ("es", "t"),
        (SPACE, "n"),
    ]


def test_the_worked_example_by_the_lowest_ids_takes_other_merges():
    # After l-o, both lo-w and w-e occur five times. The entry `lo` is newer than any letter, so its
    # id is higher, and w-e goes first.
    learned = train(split_words(EXAMPLE), 6, "lowest_pair_id")
    assert learned == [("l", "o"), ("w", "e"), ("s", "t"), (SPACE, "lo"), ("e", "we"), ("n", "ewe")]


@given(words=some_words, merges=st.integers(0, 12))
def test_the_lowest_pair_first_learns_the_librarys_merges(words, merges):
    alphabet = "".join(sorted(set("".join(words))))
    library = library_bpe(words, merges, alphabet)
    assert train(words, merges, "lowest_pair_id", alphabet) == list_merges(library)


words_and_text = alphabets.flatmap(
    lambda letters: st.tuples(
        st.lists(st.text(letters, min_size=1, max_size=8), min_size=1, max_size=12),
        st.text(letters, min_size=3, max_size=20),
    )
)


@given(words_and_text=words_and_text, merges=st.integers(1, 12))
def test_the_library_encodes_as_the_reference_does(words_and_text, merges):
    words, text = words_and_text
    alphabet = "abcdzé猫"
    library = library_bpe(words, merges, alphabet)
    expected = encode(text, list_merges(library))
    assert library.encode(text).tokens == expected
    assert "".join(expected) == text


def test_the_earliest_merge_is_made_first_wherever_it_is():
    assert encode("abcab", [("b", "c"), ("a", "b")]) == ["a", "bc", "ab"]


@pytest.mark.parametrize(
    ("word", "pieces"), [("aaa", ["aa", "a"]), ("aaaa", ["aa", "aa"]), ("baab", ["b", "aa", "b"])]
)
def test_occurrences_are_merged_from_the_left(word, pieces):
    assert merge_pair(list(word), ("a", "a")) == pieces


def test_training_ends_when_all_words_are_whole():
    assert train(["ab", "ab"], 9, "first_seen") == [("a", "b")]
    assert train([], 9, "first_seen") == []
