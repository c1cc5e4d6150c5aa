import pytest

from trainrig.report.plot_drawing import draw
from trainrig.train.run.progress import Goodput
from trainrig.train.run_report.run_charts import RunReportData
from trainrig.train.run_report.signal_charts import COLUMNS, draw_signals

LAYERS = 3


def line(step, **measured):
    usual = {
        "step": step,
        "attempt": 1,
        "time": float(step),
        "train/loss": 3.0,
        "train/step_seconds": 2.0,
        "train/tokens_per_second": 128.0,
    }
    return usual | measured


def make_charts(updates):
    data = RunReportData("run", "pretrain", 500, updates, [], [], [], Goodput())
    return draw_signals(data)


def make_norms(step):
    return {f"layers/{n:02d}/grad_norm": (n + 1.0) / step for n in range(LAYERS)}


def test_a_run_that_measured_nothing_has_none():
    assert make_charts([line(1), line(2)]) == {}


def test_each_says_what_it_shows_and_tells_its_numbers():
    shares = {"time/forward": 0.2, "time/backward": 0.5, "time/data": 0.0}
    shares |= {"time/communication": 0.1, "time/optimizer": 0.1}
    scale = {"noise/scale": 1024.0, "memory/peak_gib": 1.5}
    heat, noise, phases, memory = make_charts(
        [line(s, **make_norms(s), **shares, **scale) for s in (1, 2)]
    ).values()
    assert (heat["largest"], heat["norm"]) == (2, 1.5)
    assert heat["rows"] == [(0, 1.0, 0.5), (1, 2.0, 1.0), (2, 3.0, 1.5)]
    assert (noise["scale"], noise["share"]) == (1024.0, 4.0)
    assert phases["most"] == ("backward", "50.0\u00a0%")
    assert dict(phases["rows"])["backward"] == pytest.approx(2.0)
    assert dict(phases["rows"])["other"] == pytest.approx(0.4)
    assert memory["rows"] == [(1.0, 1.5), (2.0, 1.5)]


def test_a_heat_map_ends_with_the_last_measurement():
    heat = make_charts([line(step, **make_norms(step)) for step in (100, 200, 300)])["norms"]
    assert heat["plot"].marks[0].edges.tolist() == [0, 100, 200, 300]


def test_a_heat_map_of_a_long_run_of_few_marks_is_small():
    heat = make_charts([line(step, **make_norms(step)) for step in range(1, 1001)])["norms"]
    assert (heat["shown"], heat["measured"]) == (COLUMNS, 1000)
    assert len(draw(heat["plot"])) < 150_000


def test_a_layer_without_a_gradient_leaves_a_gap():
    heat = make_charts([line(s, **make_norms(s) | {"layers/01/grad_norm": None}) for s in (1, 2)])[
        "norms"
    ]
    assert heat["rows"][1] == (1, None, None)


def test_no_axis_writes_its_numbers_as_tex():
    """A logarithmic axis would use TeX, which an SVG shows verbatim."""
    scales = [line(step, **{"noise/scale": 60.0 + 2 * step}) for step in range(1, 80)]
    svg = draw(make_charts(scales)["noise"]["plot"])
    assert "$" not in svg and ">100<" in svg


def test_steps_without_any_gradient_have_no_column_and_a_run_of_them_no_map():
    """A policy whose completions all have the same reward has no gradient."""
    none = dict.fromkeys(make_norms(1), 0.0)
    lines = [line(1, **make_norms(1)), line(2, **make_norms(2)), line(3, **none)]
    heat = make_charts(lines)["norms"]
    assert (heat["largest"], heat["norm"], heat["shown"], heat["measured"]) == (2, 1.5, 2, 2)
    assert make_charts([line(1, **none), line(2, **none)]) == {}
