import functools
import itertools
import json
import re
import time
from unittest import mock

import numpy as np
import psutil
import pytest
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from trainrig.tokens.special_tokens import SPECIAL_TOKENS
from trainrig.tokens.tokenizer import train_tokenizer
from trainrig.tokens.tokenizers import fast_engine
from trainrig.tokens.tokenizers.entry_bytes import list_byte_characters, list_entry_bytes
from trainrig.tokens.tokenizers.fast_engine import (
    GPT_2,
    LLAMA_3,
    QWEN_2,
    WHITE_SPACE,
    FastEngine,
    NotEquivalent,
    build_fast_engine,
    find_long_runs,
)
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE

PROSE = [
    f"the cat {n} sat on the mat, naïve; the hat's {n % 7} is flat 猫が好き\n" for n in range(200)
]
CODE = [f"    def f_{n}(x):\n\t\treturn x == {n} # ''' \r\n\n\n" for n in range(200)]
CHAINS = ["a" * n + " " + "ab" * n + " " * n + "\n" * n + "!" * n for n in range(1, 40)]
# Every mixture of a few characters, so that a run that is cut in a wrong place changes the ids.
SPACES = [
    "a".join("".join(run) + mark for run in itertools.product(" \n\r\t", repeat=length))
    for length in (2, 3, 4)
    for mark in ("", "!", "\n")
]
# The vocabularies are small, so that hypothesis often meets merges, and merges of merges.
VOCABULARIES = [(words, size) for words in ("gpt2", "llama3", "none") for size in (300, 500)]

any_text = st.text(st.characters(exclude_categories=["Cs"]))
# Words in the vocabularies, in any order.
known_word = st.sampled_from(
    ["the", " cat", " mat", "'s", "    ", "\r\n", "return", "好き", "<|", "<", *SPECIAL_TOKENS]
)
chain = st.builds(
    lambda unit, times: unit * times,
    st.sampled_from(["a", "ab", " ", "\n", "!", " \n"]),
    st.integers(1, 40),
)
known_letter = st.sampled_from("aab bth ecsn\n\r\t!'=#_19猫é\u3000\x85\x1c")
known_text = st.lists(st.one_of(known_letter, known_word, chain)).map("".join)
any_mixture = st.lists(st.one_of(any_text, known_text)).map("".join)


@functools.cache
def trained(words: str, size: int) -> tokenizers.Tokenizer:
    settings = ByteLevelBPE(vocabulary=size, words=words, min_frequency=1)
    return parsed(json.loads(train_tokenizer(settings, [*PROSE, *CODE, *CHAINS, *SPACES])))


def parsed(description: dict) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(description))
    tokenizer.encode_special_tokens = True
    return tokenizer


def described(words: str = "llama3", size: int = 340) -> dict:
    return json.loads(trained(words, size).to_str())


def entries_of(tokenizer: tokenizers.Tokenizer) -> tuple[bytes, ...]:
    return list_entry_bytes(tokenizer, set(tokenizer.get_added_tokens_decoder()), "test")


@functools.cache
def fast(words: str, size: int, longest_run: int) -> FastEngine:
    tokenizer = trained(words, size)
    return build_fast_engine(tokenizer, entries_of(tokenizer), longest_run)


def encode_by_library(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


# The same ids


@pytest.mark.slow
@pytest.mark.parametrize(("words", "size"), VOCABULARIES)
@tries(max_examples=200)
@given(text=any_mixture)
def test_any_text_gets_the_ids_that_the_library_gives(words, size, text):
    # Long runs of white space are split at once, or never.
    for longest_run in (3, fast_engine.LONGEST_RUN):
        found = fast(words, size, longest_run).encode(text)
        assert found.dtype == np.uint32
        assert found.tolist() == encode_by_library(trained(words, size), text)


spaces = st.text(st.sampled_from("  \n\n\r\r\t\u3000\x85"), max_size=12)


@pytest.mark.slow
@pytest.mark.parametrize("words", ["gpt2", "llama3"])
@tries(max_examples=500)
@given(st.lists(st.tuples(st.sampled_from(["", "a", "9", "!", "'s", "é", "\x1c", "/"]), spaces)))
def test_runs_of_white_space_are_cut_without_changing_an_id(words, parts):
    text = "".join(mark + run for mark, run in parts)
    for longest_run in (1, 2, 5):
        assert fast(words, 500, longest_run).encode(text).tolist() == encode_by_library(
            trained(words, 500), text
        )


def build_without_probe(tokenizer: tokenizers.Tokenizer) -> FastEngine:
    """Return the fast engine, built without probing the tokenizer."""
    with mock.patch.object(fast_engine, "_compare"):
        return build_fast_engine(tokenizer, entries_of(tokenizer))


@pytest.mark.slow
@tries(max_examples=150)
@given(
    st.lists(st.text("ab c", min_size=1), min_size=1, max_size=8),
    st.integers(1, 30),
    st.lists(st.text("aabbbc  "), max_size=10),
)
def test_any_trained_vocabulary_is_encoded_the_same(texts, merges, others):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=256 + merges,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    quick = build_without_probe(tokenizer)
    for text in [*texts, *others]:
        assert quick.encode(text).tolist() == encode_by_library(tokenizer, text)


@pytest.mark.slow
@tries(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=25),
    st.lists(st.text("abc", min_size=1), min_size=1, max_size=10),
)
def test_untrained_merges_are_encoded_the_same_or_refused(pairs, texts):
    tokenizer = with_merges(pairs)
    try:
        quick = build_without_probe(tokenizer)
    except NotEquivalent:
        return
    for text in texts:
        assert quick.encode(text).tolist() == encode_by_library(tokenizer, text)


def with_merges(pairs: list[tuple[int, int]]) -> tokenizers.Tokenizer:
    """Return a tokenizer of the bytes and one merge for each pair.

    A pair has positions in a list of a, b, c and the earlier merges.
    """
    vocabulary = {character: byte for byte, character in enumerate(list_byte_characters())}
    names = ["a", "b", "c"]
    merges = []
    for left, right in pairs:
        pair = (names[left % len(names)], names[right % len(names)])
        if "".join(pair) not in vocabulary:
            vocabulary["".join(pair)] = len(vocabulary)
            names.append("".join(pair))
        if pair not in merges:
            merges.append(pair)
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


@tries(max_examples=100)
@given(any_mixture)
def test_a_list_of_all_pairs_is_encoded_the_same(text):
    tokenizer, quick = with_every_pair()
    assert quick.encode(text).tolist() == encode_by_library(tokenizer, text)


@functools.cache
def with_every_pair() -> tuple[tokenizers.Tokenizer, FastEngine]:
    """Return a tokenizer that lists every pair, like those converted from tiktoken (Llama 3)."""
    description = described()
    ids = description["model"]["vocab"]
    description["model"]["merges"] = [
        [name[:cut], name[cut:]]
        for name in sorted(ids, key=ids.__getitem__)
        if name not in SPECIAL_TOKENS
        for cut in range(1, len(name))
        if name[:cut] in ids and name[cut:] in ids
    ]
    description["model"]["ignore_merges"] = True
    assert len(description["model"]["merges"]) > len(described()["model"]["merges"])
    tokenizer = parsed(description)
    return tokenizer, build_fast_engine(tokenizer, entries_of(tokenizer))


# As published in tokenizer.json: GPT-2's pattern where it is written out, and Qwen 2's.
PUBLISHED = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Qwen 2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_patterns_are_known(name):
    description = described()
    pattern = {"Regex": PUBLISHED[name]}
    description["pre_tokenizer"]["pretokenizers"][0]["pattern"] = pattern
    tokenizer = parsed(description)
    quick = build_fast_engine(tokenizer, entries_of(tokenizer), 5)
    for text in [
        *PROSE[:3],
        *CODE[:3],
        *CHAINS,
        *SPACES,
        "12345 x",
        "!\n\n\n\n\n\n  \n\n  \n       b",
    ]:
        assert quick.encode(text).tolist() == encode_by_library(tokenizer, text)


# Characters


EVERY_CHARACTER = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [r"\p{L}", r"\p{N}", r"\s", "(?i:[stmdlrev])"])
def test_every_character_is_of_the_same_kind_to_both_engines(pattern):
    assert encode_by_tiktoken(pattern) == split_by_onig(pattern)


def encode_by_tiktoken(pattern: str) -> str:
    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    # Only characters that the pattern matches.
    return bytes(encoding.encode_ordinary(EVERY_CHARACTER)).decode()


def split_by_onig(pattern: str) -> str:
    cut = pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="removed", invert=True)
    return "".join(found for found, _ in cut.pre_tokenize_str(EVERY_CHARACTER))


def test_white_space_equals_the_patterns():
    assert encode_by_tiktoken(r"\s") == WHITE_SPACE


# Refused


def changed(description: dict, **changes: object) -> dict:
    return description | changes


def with_model(**changes: object) -> dict:
    description = described()
    return description | {"model": description["model"] | changes}


def with_extra_entry(name: str) -> dict:
    description = described()
    description["model"]["vocab"][name] = len(description["model"]["vocab"])
    return description


def with_merges_backwards() -> dict:
    return with_model(merges=described()["model"]["merges"][::-1])


def with_added_token() -> dict:
    description = described()
    token = {**description["added_tokens"][0], "id": 340, "content": "<think>", "special": False}
    return description | {"added_tokens": [*description["added_tokens"], token]}


def with_split(**changes: object) -> dict:
    description = described()
    description["pre_tokenizer"]["pretokenizers"][0] |= changes
    return description


def with_prefix_space() -> dict:
    description = described("gpt2")
    description["pre_tokenizer"]["add_prefix_space"] = True
    return description


def without_a_byte() -> dict:
    description = described()
    vocabulary = description["model"]["vocab"]
    vocabulary["qqqqq"] = vocabulary.pop("q")
    kept = [pair for pair in description["model"]["merges"] if "q" not in "".join(pair)]
    return description | {"model": description["model"] | {"merges": kept}}


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        (lambda: changed(described(), normalizer={"type": "NFC"}), r"changes texts first \(NFC\)"),
        (lambda: changed(described(), pre_tokenizer=None), "way that is not"),
        (with_prefix_space, "way that is not"),
        (lambda: with_split(pattern={"Regex": r"\w+|\W"}), "way that is not"),
        (lambda: with_split(behavior="Removed"), "way that is not"),
        (lambda: with_split(invert=True), "way that is not"),
        (with_added_token, "finds '<think>' in texts"),
        (lambda: with_model(dropout=0.5), "dropout = 0.5"),
        (lambda: with_model(end_of_word_suffix="e"), "end_of_word_suffix = 'e'"),
        (with_merges_backwards, "not in the order"),
        (lambda: with_extra_entry("zzz"), r"entry 340 \('zzz'\) is not what"),
        (without_a_byte, "not every byte"),
    ],
)
def test_tokenizers_that_could_differ_are_refused_with_a_reason(description, reason):
    tokenizer = parsed(description())
    with pytest.raises(NotEquivalent, match=reason):
        build_fast_engine(tokenizer, entries_of(tokenizer))


def test_another_kind_of_model_is_refused():
    tokenizer = tokenizers.Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    with pytest.raises(NotEquivalent, match="encoding, but WordPiece"):
        build_fast_engine(tokenizer, (b"a", b"[UNK]"))


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        # Merges ab, bc and abc = a + bc: by the list, abc becomes ab and c, and abc is never made.
        ([(0, 1), (1, 2), (0, 4)], "abc"),
        # Merges aa, then aaa = a + aa: by the list, aaa becomes aa and a, which it does not merge.
        ([(0, 0), (0, 3)], "aaa"),
    ],
)
def test_the_engines_do_differ_where_an_entry_is_out_of_reach(pairs, text):
    tokenizer = with_merges(pairs)
    entries = entries_of(tokenizer)
    unchecked = FastEngine(tokenizer, {entry: n for n, entry in enumerate(entries)}, GPT_2)
    assert unchecked.encode(text).tolist() != encode_by_library(tokenizer, text)
    with pytest.raises(NotEquivalent, match="not what its own"):
        build_fast_engine(tokenizer, entries)


@pytest.mark.parametrize(("words", "other"), [("gpt2", LLAMA_3), ("llama3", QWEN_2)])
def test_the_probe_finds_a_wrong_pattern(words, other, monkeypatch):
    tokenizer = trained(words, 500)
    monkeypatch.setattr(fast_engine, "_find_word_pattern", lambda settings: other)
    with pytest.raises(NotEquivalent, match="the two engines differ on"):
        build_fast_engine(tokenizer, entries_of(tokenizer))


# Long texts


@given(st.text("a   \n", max_size=60), st.integers(1, 8))
def test_long_runs_are_all_found_by_looking_at_few_places(text, least):
    expected = [m.span() for m in re.finditer(r"\s+", text) if len(m.group()) >= least]
    assert list(find_long_runs(text, least)) == expected


# More white-space characters than tiktoken accepts in one run, and fewer of those with any limit.
LONG = {
    "spaces": "x" + " " * 1_010_000 + "x",
    "lines": "!" + "\n" * 300_000 + "!",
    "lines and spaces": "a" + " \n" * 100_000 + " " * 200_000,
    "wide spaces": "\u3000" * 300_000 + "猫",
    "letters": "aabab" * 60_000,
    "digits": "1234567" * 40_000,
    "marks": "!" * 300_000,
    "two runs": ("." + " " * 150_000) * 2 + "ab" + "\t" * 150_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_a_million_characters_of_a_kind_get_the_same_ids(name):
    for words in ("gpt2", "llama3"):
        found = fast(words, 500, fast_engine.LONGEST_RUN).encode(LONG[name])
        assert np.array_equal(found, encode_by_library(trained(words, 500), LONG[name]))


@pytest.mark.slow
def test_long_runs_that_fail_in_the_library_are_encoded():
    text = "a" + " " * 12_000_000 + "b"  # looks back ten million times at most
    found = fast("llama3", 500, fast_engine.LONGEST_RUN).encode(text)
    entries = entries_of(trained("llama3", 500))
    lengths = np.array([len(entry) for entry in entries])
    assert lengths[found].sum() == len(text)
    assert {entries[number].strip() for number in np.unique(found[1:-1])} == {b""}
    assert (entries[found[0]], entries[found[-1]].strip()) == (b"a", b"b")


@pytest.mark.parametrize("unit", [" ", "\n", "ab", "7"])
def test_four_times_the_run_takes_about_four_times_as_long(unit):
    quick = fast("llama3", 500, fast_engine.LONGEST_RUN)
    sizes = (150_000, 600_000)

    def seconds(size: int) -> float:
        text = unit * (size // len(unit))
        began = time.process_time()
        quick.encode(text)
        return time.process_time() - began

    ratios = sorted(seconds(sizes[1]) / seconds(sizes[0]) for _ in range(3))
    assert ratios[1] < 12  # quadratic growth would give 16; caches that overflow, up to 8


def test_encoding_starts_no_thread():
    quick = fast("llama3", 500, fast_engine.LONGEST_RUN)
    before = psutil.Process().num_threads()
    quick.encode("the cat " * 100_000)
    assert psutil.Process().num_threads() <= before


def test_half_a_surrogate_pair_is_no_text():
    with pytest.raises(UnicodeEncodeError):
        fast("llama3", 500, fast_engine.LONGEST_RUN).encode("a\ud800b")


def test_the_name_of_the_token_that_no_text_makes_is_text():
    text = fast_engine._NO_TOKEN * 3 + "é" + fast_engine._NO_TOKEN
    assert fast("llama3", 500, fast_engine.LONGEST_RUN).encode(text).tolist() == encode_by_library(
        trained("llama3", 500), text
    )
