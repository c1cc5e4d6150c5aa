import subprocess
import sys

import datasketch
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st
from support.text_signatures import shingle

from trainrig.corpus.signatures.datasketch_signatures import (
    SCHEMES,
    compute_datasketch_signatures,
    split_words,
)
from trainrig.corpus.signatures.minhash import MinHash
from trainrig.corpus.signatures.normalised_texts import NormalisedTexts
from trainrig.corpus.signatures.signatures import compute_keys_and_shingles

TEXT = "The quick brown fox — jumps over the LAZY dog; ÀÉÎ straße "
letters = st.sampled_from("ab B_9.' é\u0130i\u0307ΣσςßЖж\ud800天気カ\u3099ทีา") | st.characters()
texts = st.lists(st.lists(letters, max_size=30).map("".join), max_size=4)


@given(texts, st.integers(0, 2**32 - 1), st.integers(1, 6), st.sampled_from(sorted(SCHEMES)))
@tries(max_examples=60)
def test_a_signature_equals_datasketchs(texts, seed, n, scheme):
    settings = MinHash(bands=3, rows=5, seed=seed, shingle_words=n, scheme=scheme)
    ours = compute_datasketch_signatures(NormalisedTexts.of(texts), settings)
    for text, found in zip(texts, ours, strict=True):
        theirs = datasketch.MinHash(num_perm=15, seed=seed, scheme=SCHEMES[scheme])
        split = split_words(text, n)
        for start in range(max(0, len(split) - n) + 1):
            theirs.update(" ".join(split[start : start + n]).encode("utf-8", "surrogatepass"))
        assert np.array_equal(found, theirs.hashvalues)


def test_datasketchs_default_matches_its_documentation():
    words = [
        "minhash",
        "is",
        "a",
        "probabilistic",
        "data",
        "structure",
        "for",
        "estimating",
        "similarity",
    ]
    theirs = datasketch.MinHash()
    for word in words:
        theirs.update(word.encode("utf8"))
    settings = MinHash(bands=128, rows=1, shingle_words=1, scheme="datasketch")
    ours = compute_datasketch_signatures(NormalisedTexts.of([" ".join(words)]), settings)
    assert np.array_equal(ours[0], theirs.hashvalues)


def test_a_text_longer_than_a_block_has_the_least_of_its_blocks():
    text = " ".join(map(str, range(10_000)))
    settings = MinHash(bands=2, rows=4, scheme="datasketch")
    theirs = datasketch.MinHash(num_perm=8)
    theirs.update_batch(" ".join(map(str, range(i, i + 5))).encode() for i in range(9_996))
    assert np.array_equal(
        compute_datasketch_signatures(NormalisedTexts.of([text]), settings)[0], theirs.hashvalues
    )


M64 = 2**64 - 1


def mixed(value: int) -> int:
    value = ((value ^ (value >> 33)) * 0xFF51AFD7ED558CCD) & M64
    value = ((value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53) & M64
    return value ^ (value >> 33)


def hash_of(word: str) -> int:
    found = 0xCBF29CE484222325  # FNV-1a, of code points
    for letter in word:
        found = ((found ^ ord(letter)) * 0x100000001B3) & M64
    return mixed(found)


@given(texts, st.integers(1, 6))
def test_the_fast_scheme_hashes_the_same_words(texts, n):
    for text in texts:
        words = split_words(text, n)
        expected = set()
        for start in range(max(0, len(words) - n) + 1):
            total = 0
            for word in words[start : start + n]:
                total = (total * 0x9E3779B97F4A7C15 + hash_of(word)) & M64
            expected.add(mixed(total) >> 32)
        assert shingle(text, n).tolist() == sorted(expected)


@pytest.mark.parametrize(
    ("text", "n", "words"),
    [
        ("Ab c_d, é", 5, ["ab", "c_d", "é"]),
        ("天気がいい", 1, ["天気", "気が", "がい", "いい", "い"]),
        ("天気。いい", 2, ["天気", "気", "いい", "い"]),
        ("第3章x", 1, ["第", "3", "章", "x"]),
        ("ไทยแลนด์", 1, ["ไทยแ", "ทยแล", "ยแลน", "แลนด์", "ลนด์", "นด์", "ด์"]),
        ("ｶﾞ", 1, ["ｶﾞ", "ﾞ"]),
    ],
)
def test_words_of_each_kind_of_script(text, n, words):
    assert split_words(text, n) == words


def test_datasketch_signatures_can_be_selected_and_give_keys():
    keys = {}
    texts = NormalisedTexts.of([TEXT * 3, TEXT])
    for scheme in ("fast", *SCHEMES):
        found, shingles, ends = compute_keys_and_shingles(texts, MinHash(scheme=scheme))
        keys[scheme] = found.tobytes()
        assert found.shape == (2, 18)
        assert np.array_equal(shingles[: ends[0]], shingle(TEXT * 3, 5))
    assert len(set(keys.values())) == 4


def test_datasketch_is_loaded_only_on_request():
    code = (
        "import sys, trainrig.corpus.signatures.signatures; "
        "print([name for name in ('datasketch', 'scipy.integrate') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
