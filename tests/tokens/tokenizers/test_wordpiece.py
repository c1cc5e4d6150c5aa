import json

import tokenizers

from trainrig.tokens.tokenizers.entry_bytes import list_byte_characters
from trainrig.tokens.tokenizers.tokenizer_kinds import CONTINUES, WORD_LIMIT, WordPiece

LEAST = 519  # 512 bytes and 7 special tokens


def of(texts: list[str], more: int) -> tokenizers.Tokenizer:
    trained = WordPiece(vocabulary=LEAST + more).train(texts)
    return tokenizers.Tokenizer.from_str(trained.decode())


def test_every_byte_is_an_entry_at_the_beginning_of_a_word_and_further_on():
    vocabulary = of([], 0).get_vocab()
    assert len(vocabulary) == LEAST
    for character in list_byte_characters():
        assert character in vocabulary and CONTINUES + character in vocabulary
    assert CONTINUES not in list_byte_characters()


def test_the_longest_entry_that_fits_is_taken_from_the_left():
    tokenizer = of(["abcd"] * 9 + ["xbcd"] * 5 + ["ab"] * 3, 4)
    assert tokenizer.encode("abcdbcd").tokens == ["abcd", "‿bcd"]
    assert tokenizer.encode("bcd").tokens[0] == "b"  # the start of a word has a separate entry


def test_a_long_word_is_cut_and_nothing_is_unknown():
    tokenizer = of(["ab"] * 9, 1)
    tokens = tokenizer.encode("ab" + "x" * 3 * WORD_LIMIT).tokens
    assert tokens[0] == "ab" and len(tokens) == 1 + 3 * WORD_LIMIT
    begins = [place for place, token in enumerate(tokens) if not token.startswith(CONTINUES)]
    assert begins == [0, *(n * WORD_LIMIT - 1 for n in (1, 2, 3))]
    assert tokenizer.token_to_id("[UNK]") is None


def test_the_library_gets_the_limit_of_word_lengths():
    model = json.loads(WordPiece(vocabulary=LEAST).train([]))["model"]
    assert model["max_input_chars_per_word"] == WORD_LIMIT
    assert model["continuing_subword_prefix"] == CONTINUES
