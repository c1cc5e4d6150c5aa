import json
import math
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from trainrig.train.run.alarm_rules import (
    AlarmRules,
    compute_effective_epochs,
    find_repetition_alarms,
)
from trainrig.train.run.alarms import AlarmWatch, notify_to, send_notification
from trainrig.train.run.planned_loss import Prediction
from trainrig.train.run.run_folder import RunFolder

GIB = 2**30


def update(step, **values):
    usual = {
        "train/loss": 3.0,
        "train/grad_norm": 0.5,
        "train/tokens": step * 100,
        "train/tokens_per_second": 1000.0,
        "cluster/workers": 4,
    }
    return {"step": step, "attempt": 1, "time": float(step), **usual, **values}


def find_named(lines, free=None, **arguments):
    rules = AlarmRules(400, **arguments)
    for line in lines:
        rules.hear(line)
    return [alarm.name for alarm in rules.list_holding(free)]


def make_updates(count, change=lambda step: {}):
    return [update(step, **change(step)) for step in range(1, count + 1)]


def keys(**values):
    return {name.replace("__", "/"): value for name, value in values.items()}


def test_a_run_as_it_should_be_raises_none():
    lines = make_updates(400, lambda step: keys(train__loss=9 / step**0.2))
    measured = [{"step": step, "eval/loss": 9 / step**0.2} for step in (100, 200, 300, 400)]
    assert (
        find_named([*lines, *measured, {"event": "checkpoint", "bytes": GIB}], free=3 * GIB) == []
    )


def test_an_expert_that_gets_no_token_thrice_in_a_row_is_dead():
    def lines(*loads):
        return [update(step, **{"experts/1/3/load": load}) for step, load in enumerate(loads, 1)]

    assert find_named(lines(1.0, 0.0, 0.005, 0.0)) == ["dead_experts"]
    assert find_named(lines(0.0, 0.0)) == []
    assert find_named(lines(0.0, 0.3, 0.0)) == []


def make_late(name, value, usual=1.0):
    return make_updates(400, lambda step: {name: value if step > 350 else usual})


@pytest.mark.parametrize(
    ("lines", "alarm"),
    [
        (make_late("train/grad_norm", 1.2, 0.5), "gradient_norm_rises"),
        ([{"step": s, "eval/loss": 3 + s / 10} for s in range(4)], "validation_gap_grows"),
        (
            [update(1, **{f"layers/0{n}/grad_norm": float(n != 1) for n in range(4)})],
            "dead_layers",
        ),
        (
            make_updates(40) + make_updates(20, lambda step: keys(train__tokens_per_second=600.0)),
            "throughput_falls",
        ),
        (
            make_updates(3, lambda s: keys(cluster__slowest_rank=2, cluster__slowest_excess=0.5)),
            "slow_worker",
        ),
        ([{"event": "checkpoint", "bytes": GIB}], "disk_fills"),
    ],
)
def test_each_alarm_is_raised_by_what_it_is_for(lines, alarm):
    rules = AlarmRules(400)
    found = []
    for line in lines:
        rules.hear(line)
        found += rules.list_holding(GIB)
    assert {raised.name for raised in found} == {alarm}
    assert all(raised.what and raised.action and len(str(raised)) < 160 for raised in found)


def test_norms_that_rise_with_a_loss_that_rose_are_no_warning_of_it():
    def both(step):
        return keys(train__grad_norm=1.2 if step > 350 else 0.5, train__loss=3 + (step > 350))

    assert find_named(make_updates(400, both)) == []


def test_another_rank_each_time_is_no_slow_worker():
    def turns(step):
        return keys(cluster__slowest_rank=step % 3, cluster__slowest_excess=0.5)

    assert find_named(make_updates(9, turns)) == []


def test_more_workers_may_be_slower_each():
    def grown(step):
        if step > 30:
            return {}
        return keys(cluster__workers=8, train__tokens_per_second=9000.0)

    assert find_named(make_updates(60, grown)) == []


def test_a_loss_above_the_law_raises_an_alarm_only_in_the_second_half():
    points = np.array([1e3, 1e5])
    law = Prediction("law", points, np.array([2.5, 2.5]), points * np.nan, points * np.nan)
    assert find_named(make_updates(190), prediction=law) == []
    assert find_named(make_updates(210), prediction=law) == ["above_prediction"]


def test_the_value_of_repeated_epochs_is_the_published_one():
    """Muennighoff et al. 2023 with R_D* = 15.387756; the limit is 1 + R_D*."""
    known = {0.5: 0.5, 1: 1, 4: 3.7257, 16: 10.5825, 40: 15.1675, 100: 16.3630}
    for epochs, worth in known.items():
        assert compute_effective_epochs(epochs) == pytest.approx(worth, abs=1e-4)
    assert [alarm.name for alarm in find_repetition_alarms({"a": 3.9, "b": 4.2})] == [
        "too_many_epochs"
    ]


def fill(folder, lines):
    Path(folder, "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def read_told(folder):
    return [e["name"] for e in RunFolder(str(folder)).read_events() if e["event"] == "alarm"]


def test_an_alarm_is_reported_once_even_to_a_late_reader(tmp_path, caplog):
    fill(tmp_path, make_late("train/grad_norm", 1.2, 0.5))
    watch = AlarmWatch(str(tmp_path), 400)
    assert [alarm.name for alarm in watch.look()] == ["gradient_norm_rises"]
    assert watch.look() == AlarmWatch(str(tmp_path), 400).look() == []
    assert read_told(tmp_path) == ["gradient_norm_rises"]
    assert "ALARM the gradient norm rose" in caplog.text and "lower training" in caplog.text


def test_an_alarm_goes_to_the_command_that_is_named(tmp_path):
    out = tmp_path / "said"
    script = tmp_path / "say.py"
    script.write_text(f"import sys, pathlib; pathlib.Path({str(out)!r}).write_text(sys.argv[-1])")
    fill(tmp_path, make_late("train/grad_norm", 1.2, 0.5))
    token = notify_to.set(f"{sys.executable} {script}")
    try:
        AlarmWatch(str(tmp_path), 400).look()
    finally:
        notify_to.reset(token)
    assert out.read_text().startswith(f"{tmp_path}: the gradient norm rose")


@pytest.mark.parametrize("target", ["/no/such/command", "http://127.0.0.1:9/", "'unclosed"])
def test_an_alarm_that_cannot_be_sent_stops_nothing(target, tmp_path, caplog):
    fill(tmp_path, make_late("train/grad_norm", 1.2, 0.5))
    token = notify_to.set(target)
    try:
        assert AlarmWatch(str(tmp_path), 400).look()
    finally:
        notify_to.reset(token)
    assert "--notify" in caplog.text and read_told(tmp_path)


def test_a_url_is_sent_what_is_wrong_as_json():
    heard = []

    class Listener(BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *said):
            pass

    with HTTPServer(("127.0.0.1", 0), Listener) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        send_notification(
            f"http://127.0.0.1:{server.server_port}/", "run", "dead_layers", "what; action"
        )
        thread.join()
    assert heard == [{"text": "run: what; action", "run": "run", "alarm": "dead_layers"}]


def test_null_losses_are_no_numbers(tmp_path):
    lines = make_updates(300, lambda step: keys(train__loss=None if step % 7 == 0 else 3.0))
    assert find_named([*lines, {"step": 1, "eval/loss": None}]) == []
    assert not math.isnan(compute_effective_epochs(0.0))
