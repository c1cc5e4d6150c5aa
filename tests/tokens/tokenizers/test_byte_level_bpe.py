import json
import random

import pytest
import tokenizers

from trainrig.errors import DataError
from trainrig.tokens.tokenizers import tokenizer_kinds
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE

LEAST = 263  # 256 bytes and 7 special tokens


def read_model(settings: ByteLevelBPE, texts: list[str]) -> dict:
    return json.loads(settings.train(texts))["model"]


def test_special_tokens_come_first_then_all_bytes_then_merges():
    vocabulary = read_model(ByteLevelBPE(vocabulary=266), ["abcabcab abcabc"])["vocab"]
    by_id = sorted(vocabulary, key=vocabulary.__getitem__)
    assert all(entry.startswith("<|") for entry in by_id[:7])
    assert [len(entry) for entry in by_id[7:LEAST]] == [1] * 256
    assert len(by_id) == 266 and all(len(entry) > 1 for entry in by_id[LEAST:])


def test_the_first_merge_is_the_commonest_pair():
    texts = ["ababab ab", "ab cd"]  # a-b occurs five times, no other pair as often
    assert read_model(ByteLevelBPE(vocabulary=LEAST + 1), texts)["merges"] == [["a", "b"]]


def test_a_pair_below_the_least_count_is_not_merged():
    with pytest.raises(DataError, match="at most 263 entries"):
        ByteLevelBPE(vocabulary=LEAST + 1, min_frequency=3).train(["ab ab"])
    ByteLevelBPE(vocabulary=LEAST + 1, min_frequency=2).train(["ab ab"])


@pytest.mark.parametrize(("words", "merged"), [("gpt2", True), ("llama3", False)])
def test_the_two_ways_to_cut_words_differ_on_long_numbers(words, merged):
    settings = ByteLevelBPE(vocabulary=LEAST + 3, words=words)
    texts = ["1234 1234 1234"]
    if merged:
        assert "1234" in read_model(settings, texts)["vocab"]
    else:
        with pytest.raises(DataError, match="at most 265 entries"):  # 12 and 123, but no 1234
            settings.train(texts)


def test_without_words_an_entry_may_be_a_phrase_but_no_name_of_a_special_token():
    texts = ["to be or <|pad|> not to be"] * 9
    with pytest.raises(DataError) as refused:
        ByteLevelBPE(vocabulary=1_000, words="none").train(texts)
    reachable = int(str(refused.value).split("at most ")[1].split()[0])
    entries = read_model(ByteLevelBPE(vocabulary=reachable, words="none"), texts)["vocab"]
    assert "toĠbeĠorĠ" in entries and "<|" in entries and "pad|>ĠnotĠtoĠbe" in entries
    assert [entry for entry in entries if "<|" in entry and entries[entry] > 6] == ["<|"]


def test_a_word_is_cut_after_1000_bytes_in_training_and_nowhere_else():
    # "xy" is split over a cut once in 1,000 bytes: an odd start puts each "x" before the cut.
    long = "z" + "xy" * 1_000 + "é" * 10
    plain = ["to be or not to be, that is the question"] * 3
    settings = ByteLevelBPE(vocabulary=LEAST + 9, words="gpt2")
    cut = [long[:1_000], long[1_000:2_000], long[2_000:]]
    assert settings.train([*plain, long]) == settings.train([*plain, *cut])
    tokenizer = tokenizers.Tokenizer.from_str(settings.train([*plain, long]).decode())
    ids = tokenizer.encode(long).ids
    assert tokenizer.decode(ids) == long
    assert max(map(len, tokenizer.encode(long).tokens)) > 1


@pytest.mark.parametrize("words", ["gpt2", "llama3"])
def test_words_of_up_to_1000_bytes_train_as_without_a_limit(words, monkeypatch):
    texts = ["".join(random.Random(n).choices("ab ", k=3_000)) for n in range(9)]
    texts += ["世界" * 150, "q" * 999, "naïve café"]
    settings = ByteLevelBPE(vocabulary=LEAST + 60, words=words)
    trained = settings.train(texts)
    monkeypatch.setattr(tokenizer_kinds, "LONGEST_TRAINED_WORD", 10**9)
    assert settings.train(texts) == trained
