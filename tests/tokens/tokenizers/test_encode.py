import functools
import json
import pickle

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

from trainrig import storage
from trainrig.errors import DataError
from trainrig.tokens.special_tokens import END_OF_TEXT, END_OF_TURN, SPECIAL_TOKENS
from trainrig.tokens.tokenizer import train_tokenizer
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE

TEXTS = [f"the cat {n} sat on the mat, naïve; the hat {n % 7} is flat 猫\n" for n in range(200)]
# Texts from which an unrestricted trainer could merge special tokens.
TEXTS_OF_SPECIAL_TOKENS = [*TEXTS, *SPECIAL_TOKENS * 500]

any_text = st.text(st.characters(exclude_categories=["Cs"]))


@functools.cache
def tokenizer_json(words: str = "llama3") -> str:
    settings = ByteLevelBPE(vocabulary=320, words=words)
    return train_tokenizer(settings, TEXTS_OF_SPECIAL_TOKENS).decode()


@pytest.fixture(params=["gpt2", "llama3"], scope="module")
def encoder(request):
    return Encoder(tokenizer_json(request.param))


@tries(deadline=None)
@given(any_text)
def test_any_text_at_all_comes_back(text):
    for words in ("gpt2", "llama3"):
        encoder = cached_encoder(words)
        (ids,) = encoder.encode_batch([text])
        assert encoder.decode(ids) == text
        assert encoder.byte_lengths[ids].sum() == len(text.encode())


@functools.cache
def cached_encoder(name: str) -> Encoder:
    """Return an encoder by its name: with the fast engine, or with the library."""
    return Encoder(make_unknown_words() if name == "library" else tokenizer_json(name))


@tries(deadline=None)
@given(st.lists(st.one_of(st.sampled_from(SPECIAL_TOKENS), any_text)).map("".join))
def test_no_text_makes_a_special_token(text):
    for name in ("gpt2", "llama3", "library"):
        (ids,) = cached_encoder(name).encode_batch([text])
        assert not (ids < len(SPECIAL_TOKENS)).any()


def test_special_tokens_in_text_come_back_as_the_text_they_are(encoder):
    text = "a<|end_of_text|> <|user|><|pad|>"
    (ids,) = encoder.encode_batch([text])
    assert len(ids) > 4 and encoder.decode(ids) == text


def test_a_pickled_encoder_still_makes_no_special_tokens(encoder):
    copy = pickle.loads(pickle.dumps(encoder))
    text = f"a{END_OF_TEXT}b"
    np.testing.assert_array_equal(copy.encode_batch([text])[0], encoder.encode_batch([text])[0])
    assert copy.end_of_text not in copy.encode_batch([text])[0]
    assert copy.fingerprint == encoder.fingerprint


def test_a_missing_special_token_is_refused_with_the_existing_ones():
    encoder = pickle.loads(pickle.dumps(Encoder(tokenizer_json(), "a/tokenizer.json")))
    with pytest.raises(DataError, match=r"a/tokenizer.json.*special token <\|bos\|>"):
        encoder.find_special("<|bos|>")


def test_special_tokens_have_the_lowest_ids_and_no_bytes_of_text(encoder):
    numbers = list(range(len(SPECIAL_TOKENS)))
    assert [encoder.find_special(name) for name in SPECIAL_TOKENS] == numbers
    assert encoder.special_ids == dict(zip(SPECIAL_TOKENS, numbers, strict=True))
    assert encoder.end_of_text == 0
    assert not encoder.byte_lengths[numbers].any()
    assert (encoder.byte_lengths[len(numbers) :] > 0).all()
    assert len(encoder.byte_lengths) == encoder.vocabulary_size == 320


def test_special_ids_decode_to_their_names(encoder):
    (ids,) = encoder.encode_batch(["hi"])
    assert encoder.decode([2, *ids, 4]) == "<|user|>hi<|end_of_turn|>"


def test_ids_and_decoding_equal_the_library(encoder):
    library = tokenizers.Tokenizer.from_str(encoder.text)
    for text, ids in zip(TEXTS, encoder.encode_batch(TEXTS), strict=True):
        assert ids.dtype == np.uint32
        assert ids.tolist() == library.encode(text).ids
    for number in range(encoder.vocabulary_size):  # single bytes and halves of characters, too
        assert encoder.decode([number]) == library.decode([number], skip_special_tokens=False)


def change_tokenizer(**changes: object) -> str:
    return json.dumps(json.loads(tokenizer_json()) | changes)


def make_unknown_words() -> str:
    """Return a tokenizer that splits like trainrig's, by a pattern that trainrig does not know."""
    description = json.loads(tokenizer_json())
    description["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] += "|\\d"
    return json.dumps(description)


def test_the_fast_engine_encodes_known_tokenizers_and_the_library_the_rest(encoder):
    slow = Encoder(make_unknown_words())
    assert (encoder.engine, encoder.why_not_fast) == ("tiktoken", "")
    assert slow.engine == "tokenizers" and "cuts texts into words" in slow.why_not_fast
    for one in (encoder, slow):
        copy = pickle.loads(pickle.dumps(one))
        assert (copy.engine, copy.why_not_fast) == (one.engine, one.why_not_fast)
    fast = Encoder(tokenizer_json())
    for text, found, expected in zip(
        TEXTS, fast.encode_batch(TEXTS), slow.encode_batch(TEXTS), strict=True
    ):
        assert found.dtype == expected.dtype == np.uint32
        assert found.tolist() == expected.tolist()
        assert slow.decode(expected) == text


@pytest.mark.parametrize("engine", ["tiktoken", "tokenizers"])
def test_a_file_that_cuts_and_fills_texts_does_so_no_more(engine):
    strategy = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    padding = {
        "strategy": {"Fixed": 99}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 1, "pad_type_id": 0, "pad_token": "<|pad|>",
    }  # fmt: skip
    text = change_tokenizer() if engine == "tiktoken" else make_unknown_words()
    encoder = Encoder(json.dumps(json.loads(text) | {"truncation": strategy, "padding": padding}))
    assert encoder.engine == engine
    for found, expected in zip(encoder.encode_batch(TEXTS), TEXTS, strict=True):
        assert encoder.decode(found) == expected


def test_a_role_is_found_by_its_published_name_too():
    encoder = Encoder(tokenizer_json().replace("<|end_of_turn|>", "<|im_end|>"))
    assert encoder.find_special(END_OF_TURN) == encoder.find_special("<|im_end|>") == 4


def test_half_a_character_decodes_to_the_replacement_character(encoder):
    (ids,) = encoder.encode_batch(["\u07ff"])  # two bytes without a merge
    assert len(ids) == 2
    assert encoder.decode(ids[:1]) == "\ufffd"
    assert encoder.decode_bytes(ids[:1]) == b"\xdf"


@pytest.mark.parametrize("number", [-100, -1, 320])
def test_invalid_ids_are_not_decoded(encoder, number):
    with pytest.raises(IndexError, match=f"{number} is not an id in a vocabulary of 320"):
        encoder.decode([5, number])


def test_the_fingerprint_is_of_the_content_not_the_layout(encoder):
    parsed = json.loads(encoder.text)
    shuffled = json.dumps(dict(reversed(parsed.items())), indent=2)
    assert Encoder(shuffled).fingerprint == encoder.fingerprint
    assert len(encoder.fingerprint) == 64
    parsed["model"]["merges"].pop()
    assert Encoder(json.dumps(parsed)).fingerprint != encoder.fingerprint


def test_a_tokenizer_is_loaded_from_its_file(tmp_path):
    path = str(tmp_path / "tokenizer.json")
    storage.write(path, tokenizer_json().encode())
    assert Encoder.load(path).fingerprint == Encoder(tokenizer_json()).fingerprint


def wordpiece() -> bytes:
    return (
        tokenizers.Tokenizer(tokenizers.models.WordPiece({"日": 0, "[UNK]": 1}, unk_token="[UNK]"))
        .to_str()
        .encode()
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file; `trainrig tokenizer` makes one"),
        (b"\xff", "not UTF-8"),
        (b"{}", "not a tokenizer.json"),
        (b"not json", "not a tokenizer.json"),
        (wordpiece(), "entry 0 ('日') is not written in byte-level characters"),
    ],
)
def test_a_file_that_is_no_byte_level_tokenizer_is_refused_by_name(tmp_path, content, message):
    path = str(tmp_path / "tokenizer.json")
    if content is not None:
        storage.write(path, content)
    with pytest.raises(DataError) as refused:
        Encoder.load(path)
    assert str(refused.value).startswith(path) and message in str(refused.value)


def test_a_tokenizer_without_end_of_text_encodes_and_fails_only_where_it_is_needed():
    encoder = Encoder(tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 2}, [])).to_str())
    assert encoder.encode_batch(["ab"])[0].tolist() == [0, 2]
    assert encoder.vocabulary_size == 3  # ids may have a gap
    with pytest.raises(DataError, match=r"role 'end'.*none"):
        print(encoder.end_of_text)
