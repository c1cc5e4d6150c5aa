import json

from trainrig.corpus.models.classifier_page import draw_reliability, render_classifier_page

CURVE = [
    {"predicted": 0.05, "observed": 0.1, "texts": 30},
    {"predicted": 0.92, "observed": 0.9, "texts": 10},
]
FACTS = {
    "positives": {"learnt": 100, "held_out": 40},
    "negatives": {"learnt": 200, "held_out": 80},
    "measured_texts": 40,
    "auc": 0.91,
    "reliability": CURVE,
    "thresholds": [{"least": 0.5, "precision": 0.9, "recall": 0.75, "kept": 0.25}],
}


def test_the_curve_is_drawn_at_its_points():
    _, curve = draw_reliability(FACTS)["plot"].marks
    assert (curve.x, curve.y) == ([0.05, 0.92], [0.1, 0.9])


def test_the_page_shows_the_facts():
    page = render_classifier_page(FACTS)
    assert "keeps 75.0% of the wanted texts, and 90.0% of the texts that it keeps" in page
    assert "probabilities are off by 0.043 on average" in page  # (30 x .05 + 10 x .02) / 40
    assert page == render_classifier_page(json.loads(json.dumps(FACTS)))
    assert "hardly separates" not in page
    assert "hardly separates" in render_classifier_page({**FACTS, "auc": 0.55})
