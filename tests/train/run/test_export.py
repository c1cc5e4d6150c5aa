"""Exported metrics: each step once, in order, with its final value."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.train.run.export import Exporter, SettledSteps, export_figures
from trainrig.train.run.metrics import TABLE, MetricsWriter, describe
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.sinks import Prometheus
from trainrig.train.spikes import Spikes

SPIKES = Spikes(margin=1, longest=4)  # held back by 4 steps


def update(step, attempt=1, data_step=None, loss=1.0):
    data_step = step - 1 if data_step is None else data_step
    return {"step": step, "attempt": attempt, "train/loss": loss, "train/data_step": data_step}


def take_steps(steps, over=False):
    return [line["step"] for line in steps.take_final(over)]


def test_a_step_is_given_once_a_spike_cannot_undo_it():
    steps = SettledSteps(SPIKES)
    for step in range(1, 8):
        steps.record(update(step))
    assert take_steps(steps) == [1, 2]
    steps.record(update(8))
    assert take_steps(steps) == [3]
    assert take_steps(steps, over=True) == [4, 5, 6, 7, 8]


def test_an_outlier_holds_back_what_its_spike_may_undo():
    steps = SettledSteps(SPIKES)
    for step in range(1, 11):
        steps.record(update(step))
    steps.record({"event": "step_skipped", "data_step": 10, "attempt": 1})
    assert take_steps(steps) == [1, 2, 3, 4, 5]
    for step in range(11, 15):
        steps.record(update(step, data_step=step))  # data step 10 gave no update
    assert take_steps(steps) == [6]  # all steps from 4 before the outlier on are held back
    steps.record(update(15, data_step=16))  # longer than a spike may be, so there was none
    assert take_steps(steps) == [7, 8, 9, 10, 11]


def test_steps_repeated_by_a_later_attempt_replace_waiting_ones():
    steps = SettledSteps(SPIKES)
    for step in range(1, 5):
        steps.record(update(step))
    steps.record(update(3, attempt=2, loss=3.0))
    steps.record(update(4, attempt=1, loss=9.0))  # an attempt that outlives its successor
    losses = {line["step"]: line["train/loss"] for line in steps.take_final(over=True)}
    assert losses == {1: 1.0, 2: 1.0, 3: 3.0}


def test_a_held_out_loss_goes_with_its_step():
    steps = SettledSteps(None)
    steps.record(update(1))
    steps.record({"step": 1, "attempt": 1, "eval/loss": 2.0})
    assert take_steps(steps) == []
    steps.record(update(2))
    assert steps.take_final() == [update(1) | {"eval/loss": 2.0}]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(1, 5))
def test_any_history_of_kills_gives_each_step_once_in_order(resumed, every):
    steps = SettledSteps(None)
    given_steps = []
    at = 0
    for attempt, start in enumerate(resumed, 1):
        start = min(start, at)
        for step in range(start + 1, start + 8):
            steps.record(update(step, attempt))
            at = step
            if step % every == 0:
                given_steps += take_steps(steps)
    given_steps += take_steps(steps, over=True)
    sent = 0
    for step in given_steps:  # the exporter skips steps that a sink already has
        sent = step if step == sent + 1 else sent
    assert sent == max(given_steps) >= at


class Recorder:
    """Sink that records its input, and fails on request."""

    kind = "Recorder"

    def __init__(self, live=False):
        self.live = live
        self.sent = 0
        self.got = []
        self.fails = 0
        self.opened = 0
        self.closed = 0
        self.attached = []
        self.takes_files = True

    def open(self, run):
        self.opened = self.opened + 1
        self.run = run
        return self

    def write(self, step, seconds, values):
        if self.fails:
            self.fails -= 1
            raise OSError("no answer")
        self.sent = step
        self.got.append((step, values))

    def attach(self, name, content):
        if not self.takes_files:
            raise OSError("no files")
        self.attached.append((name, content))

    def close(self):
        self.closed += 1


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run-a"
    folder.mkdir()
    (folder / "run.toml").write_text('stage = "pretrain"\n')
    RunFolder(str(folder)).take_attempt(0)
    return str(folder)


def log_steps(folder, steps, attempt=1):
    writer = MetricsWriter(folder, attempt, steps[0] - 1)
    for step in steps:
        writer.write(step, {"train/loss": step / 2, "train/data_step": step - 1})
    writer.close()


def test_a_sink_that_fails_costs_nothing_and_gets_it_all_later(run, caplog):
    sink = Recorder()
    exporter = Exporter(run, [sink], None)
    log_steps(run, range(1, 6))
    sink.fails = 2
    assert not exporter.send_new() and not exporter.send_new()
    assert exporter.send_new(over=True)
    assert [step for step, _ in sink.got] == [1, 2, 3, 4, 5]
    assert sink.got[0][1] == {"train/loss": 0.5, "train/data_step": 0.0}
    assert sink.opened == 3 and caplog.text.count("some metrics are not sent yet: no answer") == 2


def test_a_driver_that_begins_again_sends_no_step_twice(run):
    sink = Recorder()
    log_steps(run, range(1, 6))
    Exporter(run, [sink], None).send_new()
    RunFolder(run).take_attempt(2)
    log_steps(run, range(3, 9), attempt=2)
    Exporter(run, [sink], None).send_new(over=True)
    assert [step for step, _ in sink.got] == list(range(1, 9))
    assert sink.run.name == "run-a" and sink.run.settings == {"stage": "pretrain"}
    assert len(sink.run.id) == 16


def test_a_live_sink_gets_the_newest_step_at_once(run):
    sink = Recorder(live=True)
    exporter = Exporter(run, [sink], SPIKES)
    log_steps(run, [1, 2])
    exporter.send_new()
    assert [step for step, _ in sink.got] == [2]


def test_the_driver_sends_all_metrics_before_it_ends(run):
    sink = Recorder()
    with export_figures(run, [sink], SPIKES):
        log_steps(run, range(1, 6))
    assert [step for step, _ in sink.got] == [1, 2, 3, 4, 5] and sink.closed == 1


def test_the_report_is_attached_and_a_service_that_refuses_it_is_closed_all_the_same(run, caplog):
    refuses, takes = sinks = [Recorder(), Recorder()]
    refuses.takes_files = False
    with export_figures(run, sinks, SPIKES):
        log_steps(run, range(1, 6))
        Path(run, "report.html").write_text("<p>loss</p>")
    assert takes.attached == [("report.html", "<p>loss</p>")]
    assert "no report attached: no files" in caplog.text
    assert [sink.closed for sink in sinks] == [1, 1]


def test_every_figure_is_described():
    for metric in TABLE:
        assert describe(metric.name)[0] == metric.name
    found = describe("train/books/loss")
    assert found == (
        "train/SOURCE/loss",
        {"source": "books"},
        "Training loss on the rows of one source (nats per target).",
    )
    assert describe("layers/03/grad_norm")[1] == {"layer": "03"}
    with pytest.raises(KeyError):
        describe("train/los")


def test_prometheus_gets_a_gauge_for_each_family(run, monkeypatch):
    """Record the values that are set on Ray's own gauges."""
    from ray.util.metrics import Gauge

    seen = {}

    def note(self, value, tags=None):
        seen[self.info["name"], json.dumps(tags, sort_keys=True)] = value

    monkeypatch.setattr(Gauge, "set", note)
    writer = MetricsWriter(run, 1, 0)
    figures = {"train/loss": 2.5, "train/data_step": 6, "train/books/loss": 3.5}
    writer.write(7, figures | {"layers/01/grad_norm": 0.25})
    writer.close()
    Exporter(run, [Prometheus()], SPIKES).send_new()
    label = '"run": "run-a"'
    assert seen == {
        ("trainrig_train_step", f"{{{label}}}"): 7,
        ("trainrig_train_loss", f"{{{label}}}"): 2.5,
        ("trainrig_train_data_step", f"{{{label}}}"): 6,
        ("trainrig_train_source_loss", f'{{{label}, "source": "books"}}'): 3.5,
        ("trainrig_layers_layer_grad_norm", f'{{"layer": "01", {label}}}'): 0.25,
    }
