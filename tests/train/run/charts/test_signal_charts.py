import pytest

from trainrig.report import Chart
from trainrig.train.run.progress import Goodput
from trainrig.train.run_report.run_charts import RunReportData
from trainrig.train.run_report.signal_charts import COLUMNS, build_signal_charts

LAYERS = 3


def line(step, **measured):
    usual = {
        "step": step,
        "attempt": 1,
        "time": float(step),
        "train/loss": 3.0,
        "speed/step_seconds": 2.0,
        "speed/tokens_per_second": 128.0,
    }
    return usual | measured


def make_charts(updates):
    data = RunReportData("run", "pretrain", 500, updates, [], [], [], Goodput())
    return build_signal_charts(data)


def make_norms(step):
    return {f"layers/{n:02d}/grad_norm": (n + 1.0) / step for n in range(LAYERS)}


def test_a_run_that_measured_nothing_has_none():
    assert make_charts([line(1), line(2)]) == []


def test_each_says_what_it_shows_and_tells_its_numbers():
    shares = {"time/forward": 0.2, "time/backward": 0.5, "time/data": 0.0}
    shares |= {"time/communication": 0.1, "time/optimizer": 0.1}
    scale = {"noise/scale": 1024.0, "memory/peak_gib": 1.5}
    heat, noise, phases, memory = make_charts(
        [line(s, **make_norms(s), **shares, **scale) for s in (1, 2)]
    )
    assert heat.title == "Layer 2 has the largest gradient norm at the end, 1.5"
    assert heat.table.rows == ((0, 1.0, 0.5), (1, 2.0, 1.0), (2, 3.0, 1.5))
    assert (
        noise.title
        == "Noise scale 1,024 targets, 4 times the batch: a larger batch would train efficiently"
    )
    assert phases.title.startswith("Steps spend most of their time on backward: 50.0")
    assert dict(phases.table.rows)["backward"] == pytest.approx(2.0)
    assert dict(phases.table.rows)["other"] == pytest.approx(0.4)
    assert memory.table.rows == ((1.0, 1.5), (2.0, 1.5))
    assert all(isinstance(chart, Chart) and "<svg" in chart.svg for chart in (heat, noise, memory))


def test_a_heat_map_of_a_long_run_of_few_marks_is_small():
    (heat,) = make_charts([line(step, **make_norms(step)) for step in range(1, 1001)])
    assert f"n = {COLUMNS} of 1000" in heat.caption
    assert len(heat.svg) < 150_000


def test_a_layer_without_a_gradient_leaves_a_gap():
    (heat,) = make_charts(
        [line(s, **make_norms(s) | {"layers/01/grad_norm": None}) for s in (1, 2)]
    )
    assert heat.table.rows[1] == (1, None, None)


def test_no_axis_writes_its_numbers_as_tex():
    """A logarithmic axis would use TeX, which an SVG shows verbatim."""
    scales = [line(step, **{"noise/scale": 60.0 + 2 * step}) for step in range(1, 80)]
    (drawn,) = make_charts(scales)
    assert "$" not in drawn.svg and ">100<" in drawn.svg


def test_steps_without_any_gradient_have_no_column_and_a_run_of_them_no_map():
    """A policy whose completions all have the same reward has no gradient."""
    none = dict.fromkeys(make_norms(1), 0.0)
    (heat,) = make_charts([line(1, **make_norms(1)), line(2, **make_norms(2)), line(3, **none)])
    assert heat.title == "Layer 2 has the largest gradient norm at the end, 1.5"
    assert "n = 2 of 2" in heat.caption
    assert make_charts([line(1, **none), line(2, **none)]) == []
