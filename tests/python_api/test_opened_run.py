import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainrig
from trainrig.runs.step_trace import trace
from trainrig.train.pretrain import pretrain
from trainrig.train.run_file.run_files import Pretraining

LINES: list[dict[str, Any]] = [
    {"step": 0, "attempt": 1, "time": 1.0, "eval/loss": 6.0},
    {"step": 1, "attempt": 1, "time": 2.0, "train/loss": 5.0},
    {"step": 2, "attempt": 1, "time": 3.0, "train/loss": 4.0, "eval/web/loss": None},
    {"step": 2, "attempt": 2, "time": 9.0, "train/loss": 4.5},
    {"step": 2, "attempt": 2, "time": 9.5, "eval/loss": 5.5},
    {"step": 2, "attempt": 2, "time": 9.9, "scores/mine/words": 0.5},
]
EVENTS: list[dict[str, Any]] = [
    {"event": "attempt_started", "time": 1.0, "attempt": 1, "workers": 2},
    {"event": "attempt_failed", "time": 4.0, "attempt": 1, "culprit": 1, "ranks": [1]},
    {"event": "attempt_started", "time": 5.0, "attempt": 2, "culprit": "a node", "ranks": []},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.toml").write_text('stage = "pretrain"\n[training]\nsteps = 2\n')
    for name, lines in (("metrics", LINES), ("events", EVENTS)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"{name}.jsonl").write_text(text)
    return tmp_path


def test_metrics_are_one_row_a_step_of_the_newest_attempt(folder: Path) -> None:
    table = trainrig.open_run(folder).metrics()
    assert table.column_names[:3] == ["step", "attempt", "time"]
    assert table.select(["step", "attempt", "train/loss", "eval/loss"]).to_pylist() == [
        {"step": 0, "attempt": 1, "train/loss": None, "eval/loss": 6.0},
        {"step": 1, "attempt": 1, "train/loss": 5.0, "eval/loss": None},
        {"step": 2, "attempt": 2, "train/loss": 4.5, "eval/loss": 5.5},
    ]
    assert table["scores/mine/words"].to_pylist() == [None, None, 0.5]
    assert table.to_pandas()["train/loss"].tolist()[1:] == [5.0, 4.5]


def test_events_keep_details_of_any_type(folder: Path) -> None:
    run = trainrig.open_run(f"{folder}/")
    table = run.events()
    assert table.column_names[:2] == ["time", "event"]
    assert table["ranks"].to_pylist() == [None, [1], []]
    assert table["culprit"].to_pylist() == [None, "1", '"a node"']
    assert run.settings["training"]["steps"] == 2
    assert run.state == "failed"


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(trainrig.DataError, match=r"no run\.toml in it"):
        trainrig.open_run(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("without_ray")
def test_a_batch_has_the_sequences_of_the_trace(
    make_run: Callable[..., Pretraining], tmp_path: Path
) -> None:
    pretrain(make_run(tmp_path / "model", training={"steps": 4, "threads": 1}))
    run = trainrig.open_run(tmp_path / "model")
    batch = run.batch(2)
    traced = trace(run.path, 2)
    assert [tuple(ids) for ids in batch["ids"].to_pylist()] == [s.ids for s in traced.sequences]
    assert batch["text"].to_pylist() == [traced.encoder.decode(s.ids) for s in traced.sequences]
    assert batch["documents"].to_pylist()[0][0]["url"].startswith("https://")
    assert run.metrics()["step"].to_pylist()[-2:] == [3, 4]
    assert "finished" in run._repr_html_()
    with pytest.raises(trainrig.ConfigError, match="--step 5"):
        run.batch(5)
