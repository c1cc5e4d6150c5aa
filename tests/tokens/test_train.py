import json
import os
import subprocess
import sys

import pytest
from pydantic import ValidationError

from trainrig.errors import DataError
from trainrig.tokens.special import SPECIAL_TOKENS
from trainrig.tokens.train import ByteLevelBPE, train_tokenizer

TEXTS = [f"the cat {n} sat on the mat; the hat of cat {n % 7} is flat" for n in range(400)]
SETTINGS = ByteLevelBPE(vocabulary=290)

TRAIN_AND_HASH = """
import hashlib
from trainrig.tokens.train import ByteLevelBPE, train_tokenizer
texts = [f"{n:x} words {n * n} and word {n % 11} of {n * 7919}" for n in range(5_000)]
print(hashlib.sha256(train_tokenizer(ByteLevelBPE(vocabulary=600), texts)).hexdigest())
"""


def trained_elsewhere(**environment: str) -> str:
    """The hash of a tokenizer trained in a fresh process."""
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_AND_HASH],
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def vocabulary_of(tokenizer: bytes) -> dict[str, int]:
    return json.loads(tokenizer)["model"]["vocab"]


def test_special_tokens_come_first_then_all_bytes_then_merges():
    vocabulary = vocabulary_of(train_tokenizer(SETTINGS, TEXTS))
    by_id = sorted(vocabulary, key=vocabulary.__getitem__)
    assert by_id[:5] == list(SPECIAL_TOKENS)
    assert [len(entry) for entry in by_id[5:261]] == [1] * 256
    assert len(by_id) == 290 and all(len(entry) > 1 for entry in by_id[261:])


def test_the_first_merge_is_the_commonest_pair():
    texts = ["ababab ab", "ab cd"]  # a-b five times, nothing else as often
    merges = json.loads(train_tokenizer(ByteLevelBPE(vocabulary=262), texts))["model"]["merges"]
    assert merges == [["a", "b"]]


def test_a_pair_seen_less_often_than_asked_is_not_merged():
    with pytest.raises(DataError, match="at most 261 entries"):
        train_tokenizer(ByteLevelBPE(vocabulary=262, min_frequency=3), ["ab ab"])
    train_tokenizer(ByteLevelBPE(vocabulary=262, min_frequency=2), ["ab ab"])


@pytest.mark.parametrize(("words", "merged"), [("gpt2", True), ("llama3", False)])
def test_the_two_ways_to_cut_words_differ_on_long_numbers(words, merged):
    settings = ByteLevelBPE(vocabulary=264, words=words)
    texts = ["1234 1234 1234"]
    if merged:
        assert "1234" in vocabulary_of(train_tokenizer(settings, texts))
    else:
        with pytest.raises(DataError, match="at most 263 entries"):  # 12 and 123, but no 1234
            train_tokenizer(settings, texts)


def test_the_order_of_the_texts_changes_nothing():
    assert train_tokenizer(SETTINGS, TEXTS) == train_tokenizer(SETTINGS, TEXTS[::-1])


def test_threads_and_hash_seeds_change_nothing():
    hashes = {
        trained_elsewhere(RAYON_NUM_THREADS="1", PYTHONHASHSEED="1"),
        trained_elsewhere(RAYON_NUM_THREADS="4", PYTHONHASHSEED="2"),
        trained_elsewhere(TOKENIZERS_PARALLELISM="false"),
    }
    assert len(hashes) == 1


def test_a_vocabulary_that_the_text_cannot_fill_is_refused_with_one_that_it_can():
    with pytest.raises(DataError) as refused:
        train_tokenizer(ByteLevelBPE(vocabulary=50_000), TEXTS)
    message = str(refused.value)
    text_bytes = sum(len(text) for text in TEXTS)
    assert message.startswith(
        f"tokenizer.vocabulary: 400 texts of {text_bytes} bytes allow at most"
    )
    reachable = int(message.split("at most ")[1].split()[0])
    assert (
        len(vocabulary_of(train_tokenizer(ByteLevelBPE(vocabulary=reachable), TEXTS))) == reachable
    )
    with pytest.raises(DataError):
        train_tokenizer(ByteLevelBPE(vocabulary=reachable + 1), TEXTS)


def test_a_vocabulary_without_room_for_all_bytes_is_refused():
    with pytest.raises(ValidationError, match="greater than or equal to 261"):
        ByteLevelBPE(vocabulary=260)
