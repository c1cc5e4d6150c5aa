import math

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, trainers

from trainrig.tokens.tokenizers.tokenizer_kinds import PRINTABLE_ASCII, Unigram, make_plain_splitter
from trainrig.tokens.tokenizers.unigram_training import choose_pieces


def test_the_commonest_strings_become_pieces_likeliest_first():
    pieces = choose_pieces({"banana": 50, "band": 20, "an": 3}, 7, "")
    assert len(pieces) == 7 and {"banana", "band"} < set(pieces)
    assert set("band") < set(pieces)
    assert list(pieces.values()) == sorted(pieces.values(), reverse=True)
    assert max(pieces, key=pieces.__getitem__) == "banana"


def test_word_frequencies_count_not_only_distinct_words():
    words = {f"x{letter}q": 2 for letter in "abcdefgh"} | {"rare": 1, "often": 900}
    assert "often" in choose_pieces(words, 22, "")
    assert "rare" not in choose_pieces(words, 40, "")


def test_required_characters_are_pieces_even_if_unseen():
    pieces = choose_pieces({"aa": 5}, 97, PRINTABLE_ASCII)
    assert set(PRINTABLE_ASCII) < set(pieces) and "aa" in pieces
    assert pieces["~"] == min(pieces.values())


def test_a_character_of_no_word_that_can_be_cut_stays_a_piece():
    # The only word with a d has a character that is split into bytes.
    assert {"a", "b", "d"} < set(choose_pieces({"abab": 10**6, "dé": 1}, 5, "d"))


def test_rare_characters_are_left_to_their_bytes():
    words = {"ab": 100_000, "é": 1, "ü": 200}
    assert "é" not in choose_pieces(words, 50, "") and "ü" in choose_pieces(words, 50, "")


marks = st.text(" \0\t\n\r\u2581\u2585\u2047\ue000\x85\u3000\ufffd<>a") | st.text()


@given(st.dictionaries(marks.filter(len), st.integers(1, 9), min_size=1, max_size=6))
def test_pieces_are_strings_of_the_words_whatever_their_characters(words):
    pieces = choose_pieces(words, 60, "")
    assert all(any(piece in word for word in words) for piece in pieces)
    assert 1 <= len(pieces) <= 60 and all(pieces)


@given(
    st.dictionaries(st.text("abcé", min_size=1, max_size=40), st.integers(1, 9), max_size=9),
    st.integers(5, 60),
)
def test_fewer_pieces_than_wanted_are_all_there_are(words, wanted):
    pieces = choose_pieces(words, wanted, "ab")
    assert len(pieces) <= wanted and {"a", "b"} <= set(pieces)
    assert all(math.isfinite(score) and score <= 0 for score in pieces.values())
    if len(pieces) < wanted:
        again = choose_pieces(words, len(pieces), "ab") if len(pieces) > 2 else pieces
        assert set(again) == set(pieces)


def test_in_a_small_vocabulary_the_commonest_characters_are_pieces():
    assert set(choose_pieces({"é": 5, "ü": 9, "ö": 7, "üö": 2}, 2, "")) == {"ü", "ö"}


def test_names_of_entries_in_text_are_not_chosen_even_without_the_cut_into_words():
    texts = ["<0x41> <|pad|> <0x41><|pad|>"] * 50
    tokenizer = tokenizers.Tokenizer.from_str(Unigram(vocabulary=364).train(texts).decode())
    tokenizer.pre_tokenizer = None
    tokenizer.encode_special_tokens = True
    tokens = tokenizer.encode("<0x41><|pad|>~", add_special_tokens=False).tokens
    assert "".join(tokens) == "<0x41><|pad|>~" and not {"<0x41>", "<|pad|>"} & set(tokens)


def test_no_entry_crosses_the_cuts_between_words():
    trained = Unigram(vocabulary=360, words="llama3").train(["12 34"] * 90)
    tokens = tokenizers.Tokenizer.from_str(trained.decode()).encode("1234").tokens
    assert tokens == ["12", "3", "4"]  # 34 is an entry, but numbers are split after three digits


@pytest.mark.slow
@pytest.mark.data
def test_text_takes_no_more_entries_than_with_the_librarys_trainer(test_data):
    text = (test_data / "sets" / "tinyshakespeare.txt").read_text()
    texts = [text[start : start + 2_000] for start in range(0, 600_000, 2_000)]
    unseen = text[600_000:]
    ours = tokenizers.Tokenizer.from_str(Unigram(vocabulary=1_500).train(texts).decode())
    library = tokenizers.Tokenizer(models.Unigram())
    library.pre_tokenizer = make_plain_splitter("llama3")
    trainer = trainers.UnigramTrainer(
        vocab_size=ours.get_vocab_size() - 256 - 7, unk_token="<unk>", special_tokens=["<unk>"],
        show_progress=False,
    )  # fmt: skip
    library.train_from_iterator(texts, trainer)
    assert len(ours.encode(unseen).ids) < len(library.encode(unseen).ids)
