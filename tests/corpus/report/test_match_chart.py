import numpy as np
from matplotlib.figure import Figure

from trainrig.corpus.report.curation_charts import _plot_match_curve, chart_matches
from trainrig.corpus.signatures.minhash import MinHash, compute_match_curve


def test_the_chart_shows_the_share_found_at_the_threshold():
    chart = chart_matches(MinHash())
    assert chart.title == "98.6\u00a0% of the pairs at the threshold are compared"
    assert "18 bands of 7 rows" in chart.caption
    assert dict(chart.table.rows)[0.8] == 0.9855
    assert chart.svg.startswith("<svg") and "threshold 0.8" in chart.svg
    assert chart == chart_matches(MinHash())


def test_the_line_that_is_drawn_is_the_curve():
    settings = MinHash(bands=14, rows=8, threshold=0.75)
    line, threshold = _plot_match_curve(Figure().add_subplot(), settings).lines
    assert np.array_equal(line.get_data(), compute_match_curve(settings))
    assert threshold.get_xdata() == [0.75, 0.75]
