import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.models.classifier import (
    ClassifierModel,
    Learning,
    Sigmoid,
    compute_area,
    compute_reliability,
    fit_sigmoid,
    measure_at_thresholds,
    train,
)
from trainrig.corpus.models.linear_classifier import compute_evidence, extract_features, learn
from trainrig.corpus.models.scorers import Classifier
from trainrig.errors import DataError

SMALL = Learning(buckets_log2=16)


def draw_texts(seed: int, liked: str, number: int = 400) -> list[str]:
    """Return texts of random words, a tenth of which are of the `liked` kind."""
    draw = np.random.default_rng(seed)
    words = [f"w{n}" for n in range(300)]
    return [
        " ".join(
            liked + str(draw.integers(20)) if draw.random() < 0.1 else words[draw.integers(300)]
            for _ in range(draw.integers(5, 60))
        )
        for _ in range(number)
    ]


@pytest.fixture(scope="module")
def model() -> ClassifierModel:
    return train(draw_texts(0, "good"), draw_texts(1, "bad"), SMALL)


def test_a_classifier_separates_unseen_texts(model):
    good = model.score(draw_texts(2, "good"), ["en"] * 400)
    bad = model.score(draw_texts(3, "bad"), ["en"] * 400)
    labels = np.repeat([True, False], 400)
    assert compute_area(np.concatenate([good, bad]), labels) > 0.85
    assert model.facts["auc"] > 0.85
    assert model.facts["measured_texts"] < 200  # about half of a fifth of 800


def test_probabilities_are_calibrated():
    # A third of the texts about y are positives, and nothing in them distinguishes those.
    mixed = draw_texts(0, "x", 4000) + draw_texts(1, "y", 2000)
    model = train(mixed, draw_texts(2, "y", 4000), Learning(buckets_log2=16, held_out=0.5))
    curve = model.facts["reliability"]
    assert sum(bucket["texts"] for bucket in curve) == model.facts["measured_texts"] > 2000
    gaps = [bin["texts"] * abs(bin["predicted"] - bin["observed"]) for bin in curve]
    assert sum(gaps) / model.facts["measured_texts"] < 0.1


def test_the_same_texts_and_seed_give_the_same_bytes(model, tmp_path):
    again = train(draw_texts(0, "good"), draw_texts(1, "bad"), SMALL)
    model.save(str(tmp_path / "one")), again.save(str(tmp_path / "two"))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    other = train(draw_texts(0, "good"), draw_texts(1, "bad"), Learning(buckets_log2=16, seed=1))
    assert not np.array_equal(other.weights_B, model.weights_B)


def test_a_saved_model_scores_the_same(model, tmp_path):
    path = str(tmp_path / "classifier.safetensors")
    model.save(path)
    scorer = Classifier(path=path, column="fine")
    texts = [*draw_texts(4, "good", 5), "", " "]
    found = scorer.score(texts, ["en"] * 7)
    assert np.array_equal(found, model.score(texts, ["en"] * 7), equal_nan=True)
    assert np.isnan(found[5:]).all() and (found[:5] == np.round(found[:5], 4)).all()
    assert scorer.read_content_keys().keys() == {"path"}
    Path(path).write_bytes(Path(path).read_bytes()[:-10])
    with pytest.raises(DataError, match="truncated"):
        ClassifierModel.open(path)


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_a_score_is_a_probability_and_depends_on_its_text_alone(model, texts):
    together = model.score(texts, [""] * len(texts))
    assert all(math.isnan(score) or 0 <= score <= 1 for score in together)
    alone = [model.score([text], [""])[0] for text in texts]
    assert np.array_equal(together, alone, equal_nan=True)


def test_the_order_of_words_counts_with_n_grams_of_two():
    texts = ["a b", "b a"] * 50
    labels = np.array([True, False] * 50)
    features = extract_features(texts, [""] * 100)
    for words, apart in ((1, False), (2, True)):
        weights = learn(features, labels, 2**12, words, 5, 1.0, 0)
        first, second = compute_evidence(features, weights, words)[:2]
        assert (first > 0.1 and second < -0.1) == apart


def test_the_evidence_of_a_text_by_hand():
    features = extract_features(["a b a", ""], ["", ""])
    weights = learn(features, np.array([True, False]), 2**16, 1, 1, 1.0, 0)
    # One step from 0: the error is -1/2, the squares are 1 + 1/4 for b, then twice for a.
    b = 0.5 / math.sqrt(1.25)
    a = 0.5 / math.sqrt(1.25) + 0.5 / math.sqrt(1.5)
    found = compute_evidence(features, weights, 1)
    rate = {0: 1.0, 1: 0.5}[int(np.random.Generator(np.random.PCG64(0)).permutation(2)[0])]
    assert found[0] == pytest.approx(rate * (2 * a + b) / math.sqrt(3), rel=1e-6)
    assert math.isnan(found[1])


def test_the_area_under_the_curve_by_hand():
    labels = np.array([True, False, True, False])
    assert compute_area(np.array([0.9, 0.1, 0.5, 0.5]), labels) == pytest.approx((2 + 1.5) / 4)
    assert compute_area(np.array([1, 0, 1, 0.0]), labels) == 1


def test_texts_kept_at_a_threshold_by_hand():
    scores = np.array([0.95, 0.85, 0.3, 0.05])
    labels = np.array([True, False, True, False])
    table = {row.least: row for row in measure_at_thresholds(scores, labels)}
    assert tuple(table[0.2]) == (0.2, pytest.approx(2 / 3), 1.0, 0.75)
    assert tuple(table[0.9]) == (0.9, 1.0, 0.5, 0.25)


def test_the_reliability_curve_by_hand():
    scores = np.array([0.02, 0.04, 0.95, 1.0, 1.0])
    found = compute_reliability(scores, np.array([False, True, True, True, False]))
    assert [tuple(row) for row in found] == [
        (0.03, 0.5, 2),
        (pytest.approx(2.95 / 3), pytest.approx(2 / 3), 3),
    ]


def test_the_sigmoid_that_made_the_labels_is_found_again():
    draw = np.random.default_rng(0)
    raw = draw.normal(size=50_000) * 3
    labels = draw.random(50_000) < Sigmoid(1.7, -0.6)(raw)
    found = fit_sigmoid(raw, labels)
    assert found.slope == pytest.approx(1.7, abs=0.05)
    assert found.shift == pytest.approx(-0.6, abs=0.05)


@pytest.mark.parametrize("raw", [[1.0] * 20 + [-1.0] * 20, [0.0] * 40, [1e9] * 20 + [-1e9] * 20])
def test_a_sigmoid_is_found_where_classes_part_or_do_not(raw):
    found = fit_sigmoid(np.array(raw), np.repeat([True, False], 20))
    chances = found(np.array(raw))
    assert np.isfinite(found).all() and ((chances > 0) & (chances < 1)).all()


@pytest.mark.parametrize(
    ("positives", "negatives", "message"),
    [
        ([], ["a"] * 100, "positives: .*no text"),
        (["a b"], ["", " "], "positives: . texts to train on"),
        ([f"a {n}" for n in range(300)], [" "], "negatives: .*no text"),
        (
            [f"a {n}" for n in range(300)],
            ["b", "c"],
            "negatives: .* at least 1 and 10 are required",
        ),
    ],
)
def test_too_few_texts_are_refused(positives, negatives, message):
    with pytest.raises(DataError, match=message):
        train(positives, negatives, SMALL)
