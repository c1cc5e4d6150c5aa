import itertools
import math
from collections import Counter

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, trainers

from trainrig.tokens.tokenizers.tokenizer_kinds import PRINTABLE_ASCII, Unigram, make_plain_splitter
from trainrig.tokens.tokenizers.unigram_training import (
    Lattice,
    _digamma,
    choose_pieces,
    find_inner_spans,
)

PIECES = ["a", "b", "ab", "ba", "aba", "bb"]
some_words = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=5, unique=True)
some_chances = st.lists(st.floats(0.01, 1), min_size=len(PIECES), max_size=len(PIECES))


def list_segmentations(word: str, pieces: list[str]) -> list[list[str]]:
    if not word:
        return [[]]
    return [
        [piece, *rest]
        for piece in pieces
        if word.startswith(piece)
        for rest in list_segmentations(word[len(piece) :], pieces)
    ]


def find_edges(words: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return position, length, piece and word of each match of a piece in the joined words."""
    found = []
    before = 0
    for number, word in enumerate(words):
        for place, (piece, name) in itertools.product(range(len(word)), enumerate(PIECES)):
            if word.startswith(name, place):
                found.append((before + place, len(name), piece, number))
        before += len(word)
    return tuple(np.array(column) for column in zip(*sorted(found), strict=True))


def build_lattice(words: list[str], counts: list[int]) -> Lattice:
    place, length, piece, word = find_edges(words)
    lengths = np.array([len(w) for w in words])
    begin = np.cumsum(lengths) - lengths
    numbers = np.arange(len(words))
    return Lattice.from_edges(
        place + word,
        place + word + length,
        place - begin[word] + length,
        piece,
        first=begin + numbers,
        last=begin + numbers + lengths,
        count=np.array(counts),
        pieces=len(PIECES),
    )


@given(words=some_words, chances=some_chances, data=st.data())
def test_expected_counts_equal_a_sum_over_all_segmentations(words, chances, data):
    counts = data.draw(st.lists(st.integers(1, 9), min_size=len(words), max_size=len(words)))
    chance_of = dict(zip(PIECES, chances, strict=True))
    expected: Counter[str] = Counter()
    for word, count in zip(words, counts, strict=True):
        ways = list_segmentations(word, PIECES)
        likely = [math.prod(chance_of[piece] for piece in way) for way in ways]
        for way, chance in zip(ways, likely, strict=True):
            for piece in way:
                expected[piece] += count * chance / sum(likely)
    uses = build_lattice(words, counts).expect_uses(np.array(chances))
    np.testing.assert_allclose(uses, [expected[piece] for piece in PIECES], rtol=1e-9, atol=1e-12)


@given(words=some_words, chances=some_chances)
def test_the_best_way_to_cut_is_the_best_of_all(words, chances):
    scores = dict(zip(PIECES, np.log(chances), strict=True))
    best = build_lattice(words, [1] * len(words)).find_best_scores(np.log(chances))
    for word, found in zip(words, best, strict=True):
        assert found == pytest.approx(
            max(sum(scores[piece] for piece in way) for way in list_segmentations(word, PIECES))
        )


def test_a_piece_is_cut_into_others_than_itself():
    text = "abbaaba"
    place, length, piece, _ = find_edges([text])
    examples = np.array([text.index(name) for name in PIECES])
    lengths = np.array([len(name) for name in PIECES])
    inside = find_inner_spans(examples, lengths, place, length, piece)
    scores = np.arange(-1.0, -7, -1)  # a -1, b -2, ab -3, ba -4, aba -5, bb -6
    # ab = a b, ba = b a, aba = ab a (a b a is as good), bb = b b. Nothing remains of a and b.
    assert inside.find_best_scores(scores).tolist() == [-np.inf, -np.inf, -3, -3, -4, -4]


def test_pieces_that_are_no_more_leave_no_edges():
    lattice = build_lattice(["ab"], [1]).keep_pieces(
        np.array([True, True, False, True, True, True])
    )
    assert lattice.expect_uses(np.full(6, 0.5)).tolist() == [1, 1, 0, 0, 0, 0]


def test_a_word_that_cannot_be_cut_counts_for_nothing():
    lattice = build_lattice(["ab", "b"], [1, 3]).keep_pieces(
        np.array([0, 1, 0, 0, 0, 0], dtype=bool)
    )
    assert lattice.expect_uses(np.full(6, 0.5)).tolist() == [0, 3, 0, 0, 0, 0]


def test_digamma_equals_tabulated_values():
    values = _digamma(np.array([0.5, 1.0, 2.0, 10.0]))
    expected = [-1.9635100260, -0.5772156649, 0.4227843351, 2.2517525890]
    np.testing.assert_allclose(values, expected, atol=1e-8)


def test_the_commonest_strings_become_pieces_likeliest_first():
    pieces = choose_pieces({"banana": 50, "band": 20, "an": 3}, 8, "")
    assert len(pieces) == 8 and {"banana", "band"} < set(pieces)
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
    tokenizer = tokenizers.Tokenizer.from_str(Unigram(vocabulary=365).train(texts).decode())
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
