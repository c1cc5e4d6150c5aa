import json
import math
from pathlib import Path

import pytest

from trainrig.train.loss_table import Loss
from trainrig.train.run.metrics import (
    LOSSES,
    METRICS,
    NAMES,
    MetricsWriter,
    measure_attempt_seconds,
    measure_expert_loads,
    read_lines,
    read_series,
)

# Metrics that not every line of every run has.
UNUSUAL = (
    *("eval/", "noise/", "memory/", "cluster/slowest", "experts/"),
    *("train/held_out_seconds", "train/save_seconds"),
)


def write(folder, attempt, resumed_step, losses):
    writer = MetricsWriter(str(folder), attempt, resumed_step)
    for step, loss in enumerate(losses, resumed_step + 1):
        writer.write(step, {"train/loss": loss})
    writer.close()


def read_loss_by_step(folder):
    return {line["step"]: line["train/loss"] for line in read_series(str(folder))}


def read_board_events(folder):
    """Yield the attempt and each of its TensorBoard events, file by file."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    for path in sorted((folder / "tensorboard").iterdir(), key=lambda p: p.name[-1]):
        data = path.read_bytes()
        at = 0
        while at < len(data):
            length = data[at : at + 8]
            crc = data[at + 8 : at + 12]
            assert int.from_bytes(crc, "little") == masked_crc32c(length)
            size = int.from_bytes(length, "little")
            yield path.name[-1], Event.FromString(data[at + 12 : at + 12 + size])
            at += 12 + size + 4


def list_events(folder):
    """Yield (attempt, step, purged from, tag, value) of every TensorBoard event, file by file."""
    for attempt, event in read_board_events(folder):
        started = event.session_log.status == event.session_log.START
        for value in event.summary.value:
            yield attempt, event.step, started, value.tag, value.simple_value
        if started:
            yield attempt, event.step, started, None, None


def test_the_load_of_an_expert_is_its_tokens_over_their_mean_in_its_layer():
    loss = Loss(2.0, {}, {}, counts={"expert_tokens/1": (6, 2), "expert_tokens/2": (4, 4)})
    ends = {"experts/highest_load": 1.5, "experts/lowest_load": 0.5}
    assert measure_expert_loads(loss, all_experts=False) == ends
    assert measure_expert_loads(loss, all_experts=True) == ends | {
        "experts/1/0/load": 1.5,
        "experts/1/1/load": 0.5,
        "experts/2/0/load": 1.0,
        "experts/2/1/load": 1.0,
    }
    assert all(
        LOSSES.fullmatch(name) or name in NAMES
        for name in measure_expert_loads(loss, all_experts=True)
    )
    assert measure_expert_loads(Loss(2.0, {}, {}), all_experts=True) == {}


def test_written_metrics_read_back_to_the_last_digit(tmp_path):
    write(tmp_path, 1, 0, [math.pi, 1e-300, 2 / 3])
    assert read_loss_by_step(tmp_path) == {1: math.pi, 2: 1e-300, 3: 2 / 3}
    first = next(read_lines(str(tmp_path)))
    assert set(first) == {"step", "attempt", "time", "train/loss"} and first["attempt"] == 1


def test_a_step_taken_again_counts_as_the_newest_attempt_took_it(tmp_path):
    write(tmp_path, 1, 0, [1.0, 2.0, 3.0])
    write(tmp_path, 2, 1, [20.0])
    write(tmp_path, 3, 1, [200.0, 300.0, 400.0])
    assert read_loss_by_step(tmp_path) == {1: 1.0, 2: 200.0, 3: 300.0, 4: 400.0}
    assert len(list(read_lines(str(tmp_path)))) == 7


def test_an_attempt_that_outlives_its_successor_changes_nothing(tmp_path):
    stale = MetricsWriter(str(tmp_path), attempt=1, resumed_step=0)
    write(tmp_path, 2, 0, [2.0])
    stale.write(1, {"train/loss": 1.0})
    stale.close()
    assert read_loss_by_step(tmp_path) == {1: 2.0}


def test_a_torn_last_line_is_left_out(tmp_path):
    write(tmp_path, 1, 0, [1.0, 2.0])
    path = tmp_path / METRICS
    path.write_bytes(path.read_bytes()[:-3])
    assert read_loss_by_step(tmp_path) == {1: 1.0}


def test_a_torn_last_line_does_not_spoil_what_the_next_attempt_writes(tmp_path):
    write(tmp_path, 1, 0, [1.0, 2.0])
    path = tmp_path / METRICS
    path.write_bytes(path.read_bytes()[:-3])
    write(tmp_path, 2, 1, [20.0, 30.0])
    assert read_loss_by_step(tmp_path) == {1: 1.0, 2: 20.0, 3: 30.0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_is_written_as_null(value, tmp_path):
    write(tmp_path, 1, 0, [value, 1.0])
    assert read_loss_by_step(tmp_path) == {1: None, 2: 1.0}
    # Strict JSON has neither NaN nor Infinity.
    for line in (tmp_path / METRICS).read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(word))


def test_a_figure_without_a_unit_is_refused(tmp_path):
    writer = MetricsWriter(str(tmp_path), 1, 0)
    with pytest.raises(AssertionError, match="train/los"):
        writer.write(1, {"train/los": 1.0})
    writer.close()
    assert list(read_lines(str(tmp_path))) == []


def test_each_line_is_on_disk_as_soon_as_it_is_written(tmp_path):
    writer = MetricsWriter(str(tmp_path), 1, 0)
    writer.write(1, {"train/loss": 1.0})
    assert read_loss_by_step(tmp_path) == {1: 1.0}
    writer.close()


def test_tensorboard_gets_the_same_and_forgets_what_was_undone(tmp_path):
    write(tmp_path, 1, 0, [1.5, 2.5, 3.5])
    write(tmp_path, 2, 1, [20.5])
    values = [(a, step, tag, value) for a, step, _, tag, value in list_events(tmp_path) if tag]
    assert values == [
        ("1", 1, "train/loss", 1.5),
        ("1", 2, "train/loss", 2.5),
        ("1", 3, "train/loss", 3.5),
        ("2", 2, "train/loss", 20.5),
    ]
    # A start event makes TensorBoard drop earlier events of its step and of later steps.
    assert [(a, step) for a, step, started, *_ in list_events(tmp_path) if started] == [
        ("1", 1),
        ("2", 2),
    ]


def test_all_figures_of_a_step_are_one_tensorboard_event(tmp_path):
    writer = MetricsWriter(str(tmp_path), 1, 0)
    for step in (1, 2):
        writer.write(step, {"train/loss": 2.5, "train/two words/loss": 1.5})
    writer.close()
    found = [
        (event.step, {value.tag: value.simple_value for value in event.summary.value})
        for _, event in read_board_events(tmp_path)
        if event.summary.value
    ]
    figures = {"train/loss": 2.5, "train/two_words/loss": 1.5}
    assert found == [(1, figures), (2, figures)]


@pytest.mark.slow
def test_a_run_logs_every_figure_that_has_a_name(straight):
    sampled = {n for n in NAMES if n.startswith(UNUSUAL)}
    for line in read_series(straight(1).folder):
        several = {name for name in line if LOSSES.fullmatch(name)} - NAMES.keys()
        assert {"train/books/loss", "time/forward"} & several
        there = set(line) - several - {"step", "attempt", "time"}
        assert NAMES.keys() - sampled <= there <= NAMES.keys()
        assert line["train/tokens_per_second"] * line["train/step_seconds"] == pytest.approx(256)


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_a_steps_time_has_no_held_out_loss_and_no_save_in_it(world, straight):
    """The second step, and a held-out loss or a save before it, lie between two updates.

    Their times must not overlap.
    """
    lines = [
        json.loads(line)
        for line in (Path(straight(world).folder) / METRICS).read_text().split("\n")[:-1]
    ]
    beside = 0.0
    kinds = set()
    for line in lines:
        if "train/loss" in line:
            assert 0 < line["train/step_seconds"] + beside <= line["train/wall_seconds"] + 1e-6
            per_worker = line["train/worker_tokens_per_second"] * world
            assert per_worker == pytest.approx(line["train/tokens_per_second"])
            beside = 0.0
        for name in {"train/held_out_seconds", "train/save_seconds"} & line.keys():
            beside += line[name]
            kinds.add(name)
    assert len(kinds) == 2


def test_a_folder_without_metrics_has_none(tmp_path):
    assert read_series(str(tmp_path)) == []


def test_the_training_time_counts_a_held_out_loss_once(tmp_path):
    """A held-out loss measured between two updates is part of the second update's time."""
    measured = {"eval/loss": 1.0}
    lines = [
        {"step": 1, "attempt": 1, "time": 5.0, "train/loss": 1.0, "train/step_seconds": 4.0},
        {"step": 2, "attempt": 2, "time": 10.0, "train/loss": 1.0, "train/step_seconds": 2.0},
        {"step": 2, "attempt": 2, "time": 11.0, **measured},
        {"step": 3, "attempt": 2, "time": 13.0, "train/loss": 1.0, "train/step_seconds": 3.0},
        {"step": 3, "attempt": 2, "time": 15.5, **measured},
    ]
    (tmp_path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert measure_attempt_seconds(str(tmp_path), 1) == 4.0
    assert measure_attempt_seconds(str(tmp_path), 2) == 7.5
    assert measure_attempt_seconds(str(tmp_path), 3) == 0.0
