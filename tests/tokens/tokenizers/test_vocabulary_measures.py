import functools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.tokens.special_tokens import SPECIAL_TOKENS
from trainrig.tokens.tokenizer import train_tokenizer
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE
from trainrig.tokens.tokenizers.vocabulary_measures import (
    Amount,
    MeasuredText,
    count_occurrences,
    detect_script,
    format_entry,
    keep_first_entries,
    measure,
    measure_rival,
)

NOUNS = ["harbour", "mirror", "kitchen", "weather", "village", "captain", "journey", "silence"]
TEXTS = [
    f"the cat {n} sat on the {noun}, naïve 猫 привет мир\n\n" for n in range(40) for noun in NOUNS
]
MEASURED = [
    MeasuredText("1", "web", "en", "the mat"),
    MeasuredText("2", "web", "ja", "猫"),
    MeasuredText("3", "code", "", "x = 1\n"),
]


@functools.cache
def trained(vocabulary: int = 360) -> str:
    settings = ByteLevelBPE(vocabulary=vocabulary, min_frequency=1)
    return train_tokenizer(settings, TEXTS).decode()


@functools.cache
def measured():
    encoder = Encoder(trained())
    return measure(encoder, MEASURED, count_occurrences(encoder, TEXTS))


def test_amounts_are_those_counted_by_hand():
    tokens = [len(ids) for ids in Encoder(trained()).encode_batch([t.text for t in MEASURED])]
    assert measured().sources == {
        "web": Amount(2, 10, 8, 3, tokens[0] + tokens[1]),
        "code": Amount(1, 6, 6, 3, tokens[2]),
    }
    assert measured().languages == {
        "en": Amount(1, 7, 7, 2, tokens[0]),
        "": Amount(1, 6, 6, 3, tokens[2]),
        "ja": Amount(1, 3, 1, 1, tokens[1]),
    }
    assert list(measured().languages) == ["en", "", "ja"]  # most bytes first
    assert measured().total == Amount(3, 16, 14, 6, sum(tokens))


def test_ratios_have_their_units_and_are_zero_for_no_text():
    amount = Amount(documents=1, bytes=12, characters=6, words=2, tokens=3)
    ratios = (amount.bytes_per_token, amount.tokens_per_word, amount.tokens_per_character)
    assert ratios == (4, 1.5, 0.5)
    none = Amount()
    assert (none.bytes_per_token, none.tokens_per_word, none.tokens_per_character) == (0, 0, 0)


def test_every_entry_but_special_tokens_is_in_one_length_and_one_script():
    entries = 360 - len(SPECIAL_TOKENS)
    for groups in (measured().lengths, measured().scripts):
        assert sum(group.entries for group in groups) == entries
        assert sum(group.entries - group.used for group in groups) == measured().unused
    assert [int(group.name) for group in measured().lengths] == sorted(
        {int(group.name) for group in measured().lengths}
    )


def test_unreachable_entries_are_distinguished_from_unused_ones():
    encoder = Encoder(trained())
    seen = count_occurrences(encoder, TEXTS)
    in_training = {n for ids in encoder.encode_batch(TEXTS) for n in ids.tolist()}
    assert measured().never_seen == 360 - len(SPECIAL_TOKENS) - len(in_training)
    assert seen.sum() == sum(len(ids) for ids in encoder.encode_batch(TEXTS))
    assert {n for n in range(360) if seen[n]} == in_training
    in_measured = {n for ids in encoder.encode_batch([t.text for t in MEASURED]) for n in ids}
    assert measured().unused == 360 - len(SPECIAL_TOKENS) - len(in_measured)


@given(st.integers(0, 3), st.sampled_from([0, 1, 255, 256, 257]))
def test_occurrences_do_not_depend_on_batches(which, times):
    encoder = cached_encoder()
    (ids,) = encoder.encode_batch([TEXTS[which]])
    expected = times * np.bincount(ids, minlength=360)
    np.testing.assert_array_equal(
        count_occurrences(encoder, iter([TEXTS[which]] * times)), expected
    )


@functools.cache
def cached_encoder() -> Encoder:
    return Encoder(trained())


def test_ranks_fall_and_begin_with_the_commonest():
    counts = [count for _, count in measured().frequencies]
    assert counts == sorted(counts, reverse=True)
    assert measured().frequencies[0] == (1, measured().commonest[0][1])
    assert measured().frequencies[-1][0] == len(measured().commonest)


def test_texts_come_back_and_are_shown_cut_into_tokens():
    assert measured().not_given_back == []
    assert "".join(measured().cut) == "the mat"  # the longest
    assert measured().cut_id == "1"
    assert len(measured().cut) == measured().languages["en"].tokens


def test_a_text_that_does_not_come_back_is_named():
    class Lossy(Encoder):
        def decode_bytes(self, ids):
            return super().decode_bytes(ids).replace(b"\xe7\x8c\xab", b"?")

    encoder = Lossy(trained())
    wrong = measure(encoder, MEASURED, count_occurrences(encoder, TEXTS)).not_given_back
    assert "2" in wrong and "1" not in wrong and "3" not in wrong


@pytest.mark.parametrize("size", [256 + len(SPECIAL_TOKENS), 300, 359])
def test_the_first_entries_are_the_tokenizer_that_training_stops_at(size):
    assert json.loads(keep_first_entries(trained(), size)) == json.loads(trained(size))


def test_a_rival_costs_its_entries():
    small = Encoder(keep_first_entries(trained(), 300))
    found = measure_rival("small", small, MEASURED, parameters=2 * 768)
    assert (found.name, found.entries, found.embedding_parameters) == ("small", 300, 300 * 1536)
    assert found.amount.bytes == measured().total.bytes
    assert found.amount.tokens >= measured().total.tokens


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("the", "Latin"), (" Ünï", "Latin"), ("мир", "Cyrillic"), ("猫", "Han"), ("한", "Hangul"),
        ("aя", "several scripts"), (" 12", "digits"), ("१२", "digits"), ("  \n", "white space"),
        (" !=", "punctuation and symbols"), ("😀", "punctuation and symbols"), ("a1", "Latin"),
    ],
)  # fmt: skip
def test_the_script_of_an_entry(entry, expected):
    assert detect_script(entry.encode()) == expected


def test_half_a_character_is_of_no_script_and_is_shown_by_its_bytes():
    assert detect_script("猫".encode()[:2]) == "part of a character"
    assert format_entry(b" a\xe7\x8c") == "␣a\\xe7\\x8c"
    assert format_entry(b"\n\t") == "⏎⇥"
