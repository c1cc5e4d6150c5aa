"""Properties of every kind of trained tokenizer; a new kind is a line in KINDS."""

import functools
import json
import os
import subprocess
import sys

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from trainrig.errors import DataError
from trainrig.tokens.special_tokens import END_OF_TEXT, SPECIAL_TOKENS
from trainrig.tokens.tokenizer import Tokenizer, train_tokenizer
from trainrig.tokens.tokenizers.entry_bytes import BYTE_ENTRIES, list_entry_bytes
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE, Trained, Unigram, WordPiece

TEXTS = [f"the cat {n} sat on the mat, naïve; the hat {n % 7} is flat 猫\n" for n in range(200)]
# Texts from which an unrestricted trainer could merge special tokens.
NAMES = [*SPECIAL_TOKENS, "<|reserved_0|>", "<0x41>", "<0xE9>"]
TEXTS_WITH_NAMES = [*TEXTS, *NAMES * 200, "".join(SPECIAL_TOKENS) * 50]

KINDS: dict[str, Trained] = {
    "bpe gpt2": ByteLevelBPE(vocabulary=330, words="gpt2", reserved=2),
    "bpe llama3": ByteLevelBPE(vocabulary=330, words="llama3", reserved=2),
    "bpe none": ByteLevelBPE(vocabulary=360, words="none", reserved=2),
    "unigram gpt2": Unigram(vocabulary=400, words="gpt2", reserved=2),
    "unigram llama3": Unigram(vocabulary=400, words="llama3", reserved=2),
    "wordpiece gpt2": WordPiece(vocabulary=600, words="gpt2", reserved=2),
    "wordpiece llama3": WordPiece(vocabulary=600, words="llama3", reserved=2),
}
SPECIAL = len(SPECIAL_TOKENS) + 2

any_text = st.text(st.characters(exclude_categories=["Cs"]))
# Text, and strings that could be mistaken for markup.
tricky = st.sampled_from([*NAMES, "▁", "‿", "##", " ", "  ", "\n", "\x00", "[UNK]", "the cat", "é"])
texts_of_any_kind = st.one_of(any_text, st.lists(tricky | any_text, max_size=8).map("".join))

TRAIN_AND_HASH = """
import hashlib, sys
from pydantic import TypeAdapter
from trainrig.tokens.tokenizer import Tokenizer, train_tokenizer
texts = [f"{n:x} words {n * n} and word {n % 11} of {n * 7919}" for n in range(3_000)]
for settings in sys.argv[1:]:
    trained = train_tokenizer(TypeAdapter(Tokenizer).validate_json(settings), texts)
    print(hashlib.sha256(trained).hexdigest())
"""


@functools.cache
def trained(kind: str) -> bytes:
    return train_tokenizer(KINDS[kind], TEXTS_WITH_NAMES)


@functools.cache
def library(kind: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_str(trained(kind).decode())
    tokenizer.encode_special_tokens = True
    return tokenizer


@functools.cache
def entries(kind: str) -> tuple[bytes, ...]:
    return list_entry_bytes(library(kind), set(range(SPECIAL)), kind)


def encode(kind: str, text: str) -> list[int]:
    return library(kind).encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
@given(text=texts_of_any_kind)
def test_any_text_at_all_comes_back_and_makes_no_special_token(kind, text):
    ids = encode(kind, text)
    assert b"".join(entries(kind)[i] for i in ids) == text.encode()
    assert library(kind).decode(ids, skip_special_tokens=False) == text
    assert not set(ids) & set(range(SPECIAL))


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_is_the_name_of_an_entry_comes_back_as_text(kind):
    for name in NAMES:
        ids = encode(kind, name)
        assert (
            not set(ids) & set(range(SPECIAL))
            and b"".join(entries(kind)[i] for i in ids) == name.encode()
        )


@pytest.mark.parametrize("kind", KINDS)
def test_entries_are_unique_and_special_tokens_come_first(kind):
    tokenizer = library(kind)
    settings = KINDS[kind]
    by_id = [tokenizer.id_to_token(i) for i in range(settings.vocabulary)]
    assert tokenizer.get_vocab_size() == settings.vocabulary == len(set(by_id))
    assert by_id[:SPECIAL] == [*SPECIAL_TOKENS, "<|reserved_0|>", "<|reserved_1|>"]
    added = tokenizer.get_added_tokens_decoder()
    assert sorted(added) == list(range(SPECIAL))
    assert all(token.special for token in added.values())


@pytest.mark.parametrize("kind", KINDS)
def test_common_words_are_entries(kind):
    assert len(encode(kind, "the cat")) <= 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_the_texts_changes_nothing(kind):
    assert train_tokenizer(KINDS[kind], TEXTS_WITH_NAMES[::-1]) == trained(kind)


def train_in_fresh_process(**environment: str) -> list[str]:
    """Return the hashes of all kinds, trained in a fresh process."""
    path = os.pathsep.join(p for p in sys.path if p)
    settings = [settings.model_dump_json(exclude={"extra"}) for settings in KINDS.values()]
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_AND_HASH, *settings],
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.slow
def test_threads_and_hash_seeds_change_nothing():
    one = train_in_fresh_process(RAYON_NUM_THREADS="1", PYTHONHASHSEED="1", OMP_NUM_THREADS="1")
    many = train_in_fresh_process(RAYON_NUM_THREADS="4", PYTHONHASHSEED="2", OMP_NUM_THREADS="4")
    assert len(set(one)) == len(KINDS)
    assert one == many == train_in_fresh_process(TOKENIZERS_PARALLELISM="false")


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_that_the_text_cannot_fill_is_refused_with_one_that_it_can(kind):
    def of(vocabulary: int) -> Trained:
        return KINDS[kind].model_copy(update={"vocabulary": vocabulary})

    with pytest.raises(DataError) as refused:
        train_tokenizer(of(50_000), TEXTS)
    message = str(refused.value)
    text_bytes = sum(len(text.encode()) for text in TEXTS)
    assert message.startswith(
        f"tokenizer.vocabulary: 200 texts of {text_bytes} bytes allow at most"
    )
    reachable = int(message.split("at most ")[1].split()[0])
    filled = tokenizers.Tokenizer.from_str(train_tokenizer(of(reachable), TEXTS).decode())
    assert filled.get_vocab_size() == reachable
    with pytest.raises(DataError, match=f"at most {reachable} entries"):
        train_tokenizer(of(reachable + 1), TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_vocabulary_needs_no_text_and_still_writes_any(kind):
    least = KINDS[kind].least
    smallest = KINDS[kind].model_copy(update={"vocabulary": least})
    tokenizer = tokenizers.Tokenizer.from_str(train_tokenizer(smallest, []).decode())
    assert tokenizer.get_vocab_size() == least
    ids = tokenizer.encode("any é 猫 \x00", add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == "any é 猫 \x00"


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_without_room_for_any_text_is_refused_with_the_least(kind):
    least = KINDS[kind].least
    with pytest.raises(ValidationError, match=f"2 reserved slots; set it to {least} or more"):
        type(KINDS[kind])(vocabulary=least - 1, reserved=2)


def test_the_smallest_vocabularies_are_bytes_and_special_tokens():
    assert ByteLevelBPE().least == 256 + 7
    assert ByteLevelBPE(reserved=3).least == 256 + 7 + 3
    assert WordPiece().least == 2 * 256 + 7
    assert Unigram().least == 256 + 95 + 7


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_the_file_to_the_same_ids_and_text(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    path = tmp_path / "tokenizer.json"
    path.write_bytes(trained(kind))
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(path), eos_token=END_OF_TEXT, clean_up_tokenization_spaces=False
    )
    assert len(theirs) == KINDS[kind].vocabulary and theirs.eos_token_id == 0
    for text in ("the cat  sat, naïve 猫\n\n", " ▁ ‿ <0x41>", "e\u0301\x00", TEXTS[3]):
        ids = theirs.encode(text, add_special_tokens=False)
        assert ids == encode(kind, text)
        assert theirs.decode(ids, clean_up_tokenization_spaces=False) == text


def test_transformers_reads_a_special_token_in_text_unless_split_is_set(tmp_path):
    """Show where the guarantee about special tokens ends, as docs/tokens.md says."""
    transformers = pytest.importorskip("transformers")
    path = tmp_path / "tokenizer.json"
    path.write_bytes(trained("bpe gpt2"))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    text = "a <|user|> b"
    ours = encode("bpe gpt2", text)
    (special,) = theirs.encode("<|user|>", add_special_tokens=False)
    assert special not in ours
    assert special in theirs(text, add_special_tokens=False).input_ids
    encoded = theirs(text, add_special_tokens=False, split_special_tokens=True)
    assert encoded.input_ids == ours


def test_a_kind_is_chosen_by_its_name():
    adapter = TypeAdapter(Tokenizer)
    for settings in KINDS.values():
        assert adapter.validate_json(settings.model_dump_json(exclude={"extra"})) == settings
    with pytest.raises(ValidationError, match="'ByteLevelBPE', 'Unigram', 'WordPiece'"):
        adapter.validate_python({"kind": "SentencePiece"})


def test_a_byte_of_a_unigram_vocabulary_is_only_used_where_no_entry_is():
    names = json.loads(trained("unigram llama3"))["model"]["vocab"]
    assert [name for name, _ in names[SPECIAL : SPECIAL + 256]] == list(BYTE_ENTRIES)
    ids = encode("unigram llama3", "naïve <0x41> 猫 €")
    in_bytes = [i - SPECIAL for i in ids if i < SPECIAL + 256]
    assert bytes(in_bytes) == "€".encode()
