"""The planner's error on published runs, and the need for each of its terms.

`pytest -m bench -s tests/benchmarks/test_layouts.py` prints the table of docs/evidence/layouts.md.
"""

import statistics
from pathlib import Path

import pytest
from support import published_layouts
from support.published_layouts import (
    LLAMA,
    MEGATRON,
    MPT,
    TORCHTITAN,
    format_table_rows,
    read_published_runs,
)

from trainrig.estimate.cost_estimate import PREDICTED_BAND
from trainrig.estimate.layout import planner_terms

# Bounds of the relative error of predicted speed: 0.1 is 10% too fast. Each bound is a hundredth
# wider than found.
BANDS = {
    LLAMA: (-0.16, 0.02),
    MEGATRON: (-0.11, 0.15),
    TORCHTITAN: (-0.22, 0.33),
    MPT: (-0.19, 0.33),
}
RUNS = list(read_published_runs())
PAGE = Path(__file__).parents[3] / "docs/evidence/layouts.md"


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_published_run_is_within_its_band(run):
    low, high = BANDS[run.source]
    assert low <= run.error <= high


@pytest.mark.parametrize("term", ["products", "attention", "elementwise", "tensor", "bubble"])
def test_without_a_term_some_run_is_out_of_its_band(term):
    out = [
        run.name for run in RUNS for low, high in [BANDS[run.source]]
        if not low <= published_layouts.compute_error_without(run, term) <= high
    ]  # fmt: skip
    assert out


def test_hours_have_the_band_of_published_runs():
    found = published_layouts.compute_band(RUNS)
    assert found == pytest.approx(PREDICTED_BAND, abs=0.005)


def test_most_published_runs_are_within_a_fifth():
    near = [run for run in RUNS if abs(run.error) <= 0.2]
    assert len(near) >= 67 and len(RUNS) == 72


def test_the_rest_is_the_median_of_other_sources_too():
    """The one constant that is calibrated on all runs holds for sources that it has not seen."""
    for source in BANDS:
        others = [statistics.median(run.error for run in RUNS if run.source == other)
                  for other in BANDS if other != source]  # fmt: skip
        assert abs(statistics.mean(others)) < 0.1


@pytest.mark.parametrize(("source", "rest", "near"), [
    (LLAMA, 1.10, 3), (MEGATRON, 1.08, 10), (TORCHTITAN, 1.09, 3), (MPT, 1.15, 50),
])  # fmt: skip
def test_runs_of_a_source_are_near_with_the_rest_of_the_other_sources(source, rest, near):
    """Twin of the page's held-out table: the rest is the median over the other sources."""
    usual = 1 + planner_terms.REST.value
    others = [(1 + run.error) * usual for run in RUNS if run.source != source]
    found = statistics.median(others)
    assert found == pytest.approx(rest, abs=0.005)
    held_out = [(1 + run.error) * usual / found - 1
                for run in RUNS if run.source == source]  # fmt: skip
    assert sum(abs(error) <= 0.2 for error in held_out) == near


@pytest.mark.slow
def test_the_page_states_each_error():
    text = PAGE.read_text()
    for row in format_table_rows(RUNS):
        assert row in text, row
