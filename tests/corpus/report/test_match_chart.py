import numpy as np

from trainrig.corpus.report.curation_page import draw_matches
from trainrig.corpus.signatures.minhash import MinHash, compute_match_curve
from trainrig.report.plot_drawing import draw


def test_the_chart_shows_the_share_found_at_the_threshold():
    chart = draw_matches(MinHash())
    assert round(chart["found"], 3) == 0.986
    assert dict(chart["rows"])[0.8] == 0.9855
    assert "threshold 0.8" in draw(chart["plot"])


def test_the_line_that_is_drawn_is_the_curve():
    settings = MinHash(bands=14, rows=8, threshold=0.75)
    line, threshold, _ = draw_matches(settings)["plot"].marks
    assert np.array_equal((line.x, line.y), compute_match_curve(settings))
    assert (threshold.at, threshold.side) == (0.75, "x")
