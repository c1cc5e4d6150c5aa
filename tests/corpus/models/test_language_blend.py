import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.models import language_blend
from trainrig.corpus.models.byte_ngrams import ByteScores
from trainrig.corpus.models.language_blend import blend, match_classes
from trainrig.corpus.models.language_id import list_language_codes
from trainrig.corpus.signals.text_arrays import build_batch

LABELS = ("en", "de", "bar", "sh", "ja", "zh", "ko", "yi", "he", "hi", "mr")
NAMES = ("de", "en", "zxx", "zu", "ja", "zh", "ko", "he", "de", "hi", "mr")


def blend_by_hand(lid: np.ndarray, scores: np.ndarray, size: int) -> dict[str, float]:
    """Return the probability of each language of a text in Latin script, by the formula."""
    w = language_blend._Weights()
    best = {}
    for name, score in zip(NAMES, scores.tolist(), strict=True):
        if name != "zxx":
            best[name] = max(score, best.get(name, -np.inf))
    scale = w.ngram_weight * size**-w.ngram_decay
    highest = max(best.values())
    terms = {}
    for name in {*LABELS, *best} - {"sh"}:
        known = np.log(lid[LABELS.index(name)] + w.lid_floor) if name in LABELS else None
        if known is None:
            terms[name] = (best[name] - highest) * scale + w.only_ngrams
        elif name in best:
            terms[name] = (best[name] - highest) * scale + w.lid_weight * known
        else:
            terms[name] = w.only_lid_weight * known + w.only_lid
    total = sum(np.exp(term) for term in terms.values())
    return {name: float(np.exp(term) / total) for name, term in terms.items()}


@given(st.integers(0, 2**32 - 1), st.integers(1, 3_000))
def test_the_blend_is_the_formula(seed: int, size: int):
    random = np.random.default_rng(seed)
    lid = random.dirichlet(np.full(len(LABELS), 0.3)).astype(np.float32)
    scores = random.normal(0, size**0.7, len(NAMES)).astype(np.float32)
    expected = blend_by_hand(lid, scores, size)
    found = blend(
        build_batch(["a latin text"]),
        np.array([0]),
        lid[None],
        ByteScores(scores[None], np.array([size])),
        match_classes(LABELS, NAMES),
    )
    named = {name: value for name, value in expected.items() if name in LABELS}
    code = max(named, key=named.__getitem__)
    assert LABELS[found.labels_D[0]] == code
    assert found.scores_D[0] == pytest.approx(named[code], rel=1e-4)


def blend_undecided(texts: list[str]) -> list[str]:
    """Return the languages of texts for which all languages are equally likely to both models."""
    lid = np.full((len(texts), len(LABELS)), 1 / len(LABELS), np.float32)
    scores = ByteScores(
        np.zeros((len(texts), len(NAMES)), np.float32), np.full(len(texts), 20, np.int64)
    )
    classes = match_classes(LABELS, NAMES)
    found = blend(build_batch(texts), np.arange(len(texts)), lid, scores, classes)
    return [LABELS[label] for label in found.labels_D]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("한국어", {"ko"}),
        ("ひらがな", {"ja"}),
        ("水車小屋は川の傍", {"ja"}),  # a quarter is kana
        ("שלום", {"he", "yi"}),
        ("चक्की", {"hi", "mr"}),
        ("iPhone 한국어로 쓴 글입니다", {"ko"}),
    ],
)
def test_letters_of_a_script_leave_the_languages_of_that_script(text: str, codes: set[str]):
    assert blend_undecided([text])[0] in codes


@pytest.mark.parametrize("text", ["only latin", "an English sentence: 한글", "123", "水車"])
def test_other_texts_are_left_to_the_models(text: str):
    assert blend_undecided([text])[0] == blend_undecided(["plain"])[0]


def test_languages_of_scripts_are_those_of_the_model():
    named = {code for _, _, codes in language_blend._SCRIPTS for code in codes}
    assert named <= set(list_language_codes())
    starts = [first for first, _, _ in language_blend._SCRIPTS]
    assert starts == sorted(starts)  # searched by halving


def test_serbo_croatian_is_never_named():
    lid = np.zeros((1, len(LABELS)), np.float32)
    lid[0, LABELS.index("sh")] = 1
    scores = ByteScores(np.zeros((1, len(NAMES)), np.float32), np.array([20]))
    classes = match_classes(LABELS, NAMES)
    found = blend(build_batch(["text"]), np.array([0]), lid, scores, classes)
    assert LABELS[found.labels_D[0]] != "sh"
    assert 0 < found.scores_D[0] < 0.9
