import json

import pytest
import tokenizers
from tokenizers import decoders, models

from trainrig.errors import DataError
from trainrig.tokens.tokenizers.entry_bytes import (
    BYTE_ENTRIES,
    list_byte_characters,
    list_entry_bytes,
)


def with_decoder(vocabulary: list[str], decoder: object = None) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE({e: i for i, e in enumerate(vocabulary)}, []))
    if decoder is not None:
        tokenizer.decoder = decoder
    return tokenizer


def test_byte_level_entries_decode_to_their_bytes():
    tokenizer = with_decoder(["<|a|>", "Ġthe", "Ã©", "Ċ"], decoders.ByteLevel())
    assert list_entry_bytes(tokenizer, {0}, "x") == (b"<|a|>", b" the", "é".encode(), b"\n")


def test_each_byte_has_a_character_and_the_library_has_the_same():
    characters = list_byte_characters()
    assert len(set(characters)) == 256
    tokenizer = with_decoder(characters, decoders.ByteLevel())
    assert list_entry_bytes(tokenizer, set(), "x") == tuple(bytes([byte]) for byte in range(256))
    for byte in range(128):  # a single byte from 128 on is no text
        assert tokenizer.decode([byte]) == chr(byte)


def test_plain_entries_are_their_text_and_byte_entries_a_byte():
    decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = with_decoder([" the", "é", "▁", "<0xE9>", "<0x4>", "x<0x41>"], decoder)
    assert list_entry_bytes(tokenizer, set(), "x") == (
        *(b" the", "é".encode(), "▁".encode(), b"\xe9", b"<0x4>", b"x<0x41>"),
    )


def test_all_256_bytes_have_an_entry_in_the_plain_spelling():
    decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = with_decoder(list(BYTE_ENTRIES), decoder)
    assert b"".join(list_entry_bytes(tokenizer, set(), "x")) == bytes(range(256))


def test_replacements_of_the_decoder_are_applied():
    marked = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    assert list_entry_bytes(with_decoder(["▁a", "▁▁"], marked), set(), "x") == (b" a", b"  ")
    joined = decoders.Sequence([decoders.Replace("‿", ""), decoders.ByteLevel()])
    assert list_entry_bytes(with_decoder(["‿Ã", "Ã"], joined), set(), "x") == (b"\xc3", b"\xc3")


def test_added_tokens_that_are_not_special_are_the_text_that_they_are():
    tokenizer = with_decoder(["a"], decoders.ByteLevel())
    tokenizer.add_tokens(["é b"])
    assert list_entry_bytes(tokenizer, set(), "x") == (b"a", "é b".encode())


LLAMA_2 = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (LLAMA_2, "decoder Strip removes spaces that may be part of the text"),
        (decoders.WordPiece(), "decoder WordPiece does not give each entry fixed bytes"),
        (decoders.Metaspace(), "decoder Metaspace does not"),
        (decoders.BPEDecoder(), "decoder BPEDecoder does not"),
        (decoders.Sequence([decoders.Fuse(), decoders.ByteLevel()]), "decoder Fuse does not"),
        (decoders.Replace("a", "b"), "decoder Replace alone"),
    ],
)
def test_a_decoder_without_bytes_per_entry_is_refused(decoder, message):
    with pytest.raises(DataError) as refused:
        list_entry_bytes(with_decoder(["a"], decoder), set(), "t.json")
    assert str(refused.value).startswith(f"t.json: {message}") and "\n" not in str(refused.value)


def test_an_entry_that_is_not_written_as_the_rest_is_refused_by_name():
    with pytest.raises(DataError, match=r"t.json: entry 1 \('日'\) is not written"):
        list_entry_bytes(with_decoder(["a", "日"], decoders.ByteLevel()), set(), "t.json")


def test_ids_with_a_gap_are_refused():
    tokenizer = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 2}, []))
    with pytest.raises(DataError, match=r"t.json.*id 1"):
        list_entry_bytes(tokenizer, set(), "t.json")


def test_the_decoder_is_read_as_the_file_has_it():
    tokenizer = with_decoder(["▁a"], decoders.Sequence([decoders.Replace("▁", " ")]))
    description = json.loads(tokenizer.to_str())
    description["decoder"]["decoders"] += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    again = tokenizers.Tokenizer.from_str(json.dumps(description))
    assert list_entry_bytes(again, set(), "x") == (b" a",)
