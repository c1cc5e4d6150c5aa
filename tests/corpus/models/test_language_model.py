import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from trainrig.corpus.models.language_model import (
    LanguageModel,
    Perplexity,
    assign_buckets,
    find_cutoffs,
    train,
)
from trainrig.corpus.models.subwords import (
    Subwords,
    TextEncoder,
    TokenizerFile,
    Words,
    iterate_lines,
    make_tokenizer,
)
from trainrig.errors import DataError

TEXTS = ["the cat sat\nthe cat ran\n\nthe dog sat", "a cat and a dog", "the mat"] * 3


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    tokenizer = make_tokenizer(Words(vocabulary=100), iter(TEXTS))
    return train(TEXTS, tokenizer, 3, [1, 1, 1])


def logs(model: LanguageModel, line: str) -> float:
    ids = {word: number for number, word in enumerate(model.vocabulary)}
    stream = [1, *(ids.get(word, 0) for word in line.split()), 2]
    return float(model.trie.score(np.array(stream, np.uint32)).sum(dtype=np.float64))


def test_perplexity_is_of_all_lines_with_an_end_each(model):
    # The two lines have 3 + 2 words and one </s> each: 7 in all.
    total = logs(model, "the cat sat") + logs(model, "a zebra")
    (found,) = model.compute_perplexity(["the cat sat\n \na zebra\n"])
    assert found == pytest.approx(10 ** (-total / 7), rel=1e-6)


def test_a_text_without_a_line_has_none(model):
    assert np.isnan(model.compute_perplexity(["", "\n \n"])).all()


@given(st.lists(st.text(), max_size=5))
def test_any_text_has_a_perplexity_above_one_or_none(model, texts):
    found = model.compute_perplexity(texts)
    assert len(found) == len(texts)
    assert all(math.isnan(value) or value > 1 for value in found)
    one_by_one = [model.compute_perplexity([text])[0] for text in texts]
    assert np.array_equal(found, one_by_one, equal_nan=True)


def test_case_accents_and_digits_are_folded_as_ccnet_does(model):
    assert model.compute_perplexity(["THE CAT"]) == model.compute_perplexity(["thé cat"])
    tokenizer = make_tokenizer(Words(), iter(["in 1999"]))
    digits = train(["in 1999"], tokenizer, 2, [1, 1])
    assert digits.compute_perplexity(["in 2024"]) == digits.compute_perplexity(["in 1999"])


def test_a_special_words_name_in_a_text_is_an_unknown_word(model):
    found = model.compute_perplexity(["the <s> cat </s>", "the zebra cat zebra"])
    assert found[0] == found[1]


def test_a_saved_model_scores_the_same(model, tmp_path):
    path = str(tmp_path / "model.lm")
    model.save(path)
    opened = LanguageModel.open(path)
    assert np.array_equal(opened.compute_perplexity(TEXTS), model.compute_perplexity(TEXTS))
    assert opened.facts == model.facts
    before = Path(path).read_bytes()
    model.save(path)
    assert Path(path).read_bytes() == before


def test_an_arpa_file_with_its_tokenizer_gives_the_same_scores(model, tmp_path):
    model.save(str(tmp_path / "model.arpa.gz"))
    (tmp_path / "tokenizer.json").write_text(model.tokenizer)
    scorer = Perplexity(
        path=str(tmp_path / "model.arpa.gz"), tokenizer=str(tmp_path / "tokenizer.json")
    )
    found = scorer.score(TEXTS, ["en"] * len(TEXTS))
    assert np.array_equal(found, np.round(model.compute_perplexity(TEXTS), 4))
    plain = LanguageModel.open(str(tmp_path / "model.arpa.gz"))
    assert plain.compute_perplexity(["the cat"]) == model.compute_perplexity(["the cat"])


def test_each_language_has_its_model(model, tmp_path):
    model.save(str(tmp_path / "en.lm"))
    scorer = Perplexity(path={"en": str(tmp_path / "en.lm")}, column="fluency")
    found = scorer.score(["the cat", "the cat"], ["de", "en"])
    assert math.isnan(found[0]) and found[1] == round(model.compute_perplexity(["the cat"])[0], 4)
    assert list(scorer.read_content_keys()) == ["en"]


SCRIPT = """
import hashlib, sys
from trainrig.corpus.models.subwords import Subwords, make_tokenizer
texts = [" ".join(f"w{i * j % 97}x{i % 7}" for i in range(200)) for j in range(60)]
print(hashlib.sha256(make_tokenizer(Subwords(vocabulary=400), iter(texts)).encode()).hexdigest())
"""


def test_subwords_are_the_same_at_any_hash_seed_and_number_of_threads():
    made = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ
            | {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads}
            | {"TOKENIZERS_PARALLELISM": parallel},
            check=True,
            capture_output=True,
        ).stdout
        for seed, threads, parallel in [("1", "1", "false"), ("2", "4", "true"), ("3", "2", "true")]
    }
    assert len(made) == 1


def test_an_existing_tokenizer_can_be_used(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(make_tokenizer(Subwords(vocabulary=300), iter(TEXTS)))
    text = make_tokenizer(TokenizerFile(path=str(path)), iter([]))
    assert train(TEXTS, text, 3, [1, 1, 1]).compute_perplexity(["the cat"])[0] > 1
    with pytest.raises(DataError, match="does not exist; name a tokenizer"):
        make_tokenizer(TokenizerFile(path=str(tmp_path / "nothing")), iter([]))
    path.write_text("{}")
    with pytest.raises(DataError, match=r"is not a tokenizer"):
        make_tokenizer(TokenizerFile(path=str(path)), iter([]))


@pytest.mark.parametrize("pieces", [Subwords(vocabulary=300), Words()])
@example(texts=["1 <s>", "a</s> <s>"])
@given(texts=st.lists(st.text(st.sampled_from("ab <s>/é\u00a0\u03a3\n\tΣ1")), max_size=3))
def test_words_cut_one_by_one_are_cut_as_the_line_is(pieces, texts):
    tokenizer = tokenizers.Tokenizer.from_str(make_tokenizer(pieces, iter(TEXTS)))
    cutter = TextEncoder(tokenizer.to_str(), "here")
    assert cutter._by_word
    found, _ = cutter.encode_sentences(texts, np.arange(cutter.pieces, dtype=np.uint32) + 3)
    expected = []
    for text in texts:
        for line in iterate_lines(text):
            expected += [1, *(n + 3 for n in tokenizer.encode(line).ids), 2]
    assert found.tolist() == expected


def test_a_tokenizer_that_may_look_beyond_a_word_is_given_lines():
    plain = tokenizers.Tokenizer.from_str(make_tokenizer(Words(), iter(["a b"])))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    assert not TextEncoder(plain.to_str(), "here")._by_word


def test_texts_without_a_line_train_nothing():
    with pytest.raises(DataError, match="no words to count"):
        train(["", " \n"], make_tokenizer(Words(), iter(["a"])), 2, [1, 1])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "model that trainrig wrote"),
        (b"x" * 100, "model that trainrig wrote"),
        ((2**62).to_bytes(8, "little") + b"{}", "model that trainrig wrote"),
        ((2).to_bytes(8, "little") + b"[]", "model that trainrig wrote"),
    ],
)
def test_other_files_are_refused_as_models(tmp_path, data, message):
    path = tmp_path / "model.lm"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        LanguageModel.open(str(path))


def test_a_torn_model_is_refused(model, tmp_path):
    path = tmp_path / "model.lm"
    model.save(str(path))
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(DataError, match="is truncated"):
        LanguageModel.open(str(path))
    with pytest.raises(DataError, match="does not exist"):
        LanguageModel.open(str(tmp_path / "nothing.lm"))


def test_a_tokenizer_of_another_model_is_refused(model, tmp_path):
    model.save(str(tmp_path / "model.arpa"))
    other = tokenizers.Tokenizer(tokenizers.models.WordLevel({"Ω": 0}, unk_token="Ω"))
    (tmp_path / "other.json").write_text(other.to_str())
    with pytest.raises(DataError, match="tokenizer's pieces"):
        LanguageModel.open(str(tmp_path / "model.arpa"), str(tmp_path / "other.json"))


def test_the_file_is_laid_out_as_safetensors(model, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    model.save(str(tmp_path / "model.safetensors"))
    arrays = safetensors.load_file(str(tmp_path / "model.safetensors"))
    assert np.array_equal(arrays["logs_T"], model.trie.logs_T)
    assert json.loads(arrays["vocabulary"].tobytes()) == list(model.vocabulary)


def test_thirds_are_by_each_languages_own_cut_offs():
    perplexities = np.array([*range(10), *range(100, 110), np.nan], float)
    languages = ["en"] * 10 + ["de"] * 10 + ["en"]
    cuts = find_cutoffs(perplexities, languages)
    assert cuts == {"en": (3.0, 6.0), "de": (103.0, 106.0)}
    found = assign_buckets(perplexities, languages, cuts)
    assert found[:10] == found[10:20] == ["head"] * 3 + ["middle"] * 3 + ["tail"] * 4
    assert found[20] == "" and assign_buckets(perplexities[:1], ["fr"], cuts) == [""]
