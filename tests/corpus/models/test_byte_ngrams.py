import io
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.corpus.models.byte_ngrams import (
    ByteModel,
    find_model,
    read_byte_model,
    score_bytes,
)
from trainrig.errors import DataError

SENTENCES = [
    "The mill stands by the river.",
    "Die Mühle steht am Fluss, am Fluss.",
    "水車小屋は川のそばに立っています。",
    "Мельница стоит у реки уже двести лет.",
    "नदी के किनारे एक चक्की खड़ी है।",
]


@pytest.fixture(scope="module")
def model() -> ByteModel:
    return read_byte_model(find_model())


@pytest.fixture(scope="module")
def peer() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)


def assert_scores_equal(model: ByteModel, peer: Any, texts: list[str]) -> None:
    found = score_bytes(texts, model.n_grams)
    for text, scores, size in zip(texts, found.scores_DK, found.sizes_D, strict=True):
        encoded = peer._encode(f" {' '.join(text.split())} ")
        assert size == len(encoded)
        expected = peer._raw_score(encoded)
        if expected.max() < -1e30:  # its sign of a text without n-grams
            expected = peer.nb_pc
        # Sums of float32 in another order.
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-2)


def test_sentences_have_the_scores_that_py3langid_gives_them(model: ByteModel, peer: Any):
    assert_scores_equal(model, peer, [*SENTENCES, " ".join(SENTENCES) * 5])


@settings(max_examples=40)
@given(
    st.text(st.characters(), max_size=60)
    | st.lists(st.sampled_from([*SENTENCES, "e\u0301", "\ud800", "Å", "\x00"])).map("".join)
)
def test_any_text_has_the_scores_that_py3langid_gives_it(model: ByteModel, peer: Any, text: str):
    # py3langid converts capitals itself; here that is the caller's task.
    assert_scores_equal(model, peer, [text.lower() if text.isupper() else text])


def test_a_text_has_one_score_whatever_is_in_the_batch(model: ByteModel):
    together = score_bytes([*SENTENCES, ""], model.n_grams).scores_DK
    for text, scores in zip([*SENTENCES, ""], together, strict=True):
        np.testing.assert_array_equal(score_bytes([text], model.n_grams).scores_DK[0], scores)


def test_white_space_does_not_matter(model: ByteModel):
    texts = ["zwei Worte", "\n zwei \t\n Worte\n"]
    spaced, folded = score_bytes(texts, model.n_grams).scores_DK
    np.testing.assert_array_equal(spaced, folded)


def test_composed_and_decomposed_letters_are_the_same(model: ByteModel):
    composed, decomposed = score_bytes(["Mühle", "Mu\u0308hle"], model.n_grams).scores_DK
    np.testing.assert_array_equal(composed, decomposed)


@pytest.mark.parametrize("data", [b"", b"no model", lzma.compress(b"no arrays")])
def test_other_files_are_refused_by_name(tmp_path: Path, data: bytes):
    path = tmp_path / "model.npz.xz"
    path.write_bytes(data)
    with pytest.raises(DataError, match="is not a model of py3langid") as found:
        read_byte_model(path)
    assert str(path) in str(found.value)


@pytest.mark.parametrize("wrong", [40.0, -40.0, np.nan])
def test_a_log_probability_that_steps_cannot_hold_is_refused(tmp_path: Path, wrong: float):
    arrays = {
        "ptc": np.array([[-1.0], [wrong]], np.float16),
        "pc": np.zeros(1, np.float32),
        "classes": np.array(["en"]),
        "nextmove": np.zeros(256, np.uint32),
        "nextmove_row": np.zeros(1, np.uint16),
        "out_feat": np.zeros(1, np.int32),
    }
    plain = io.BytesIO()
    np.savez(plain, **arrays)
    path = tmp_path / "model.npz.xz"
    path.write_bytes(lzma.compress(plain.getvalue()))
    with pytest.raises(DataError, match="outside -32 to 32"):
        read_byte_model(path)


def test_a_missing_package_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"py3langid.*not installed.*pip install"):
        find_model()
