"""Learning curves: CSVs, folders of runs, and what is refused, with its line."""

import json
from pathlib import Path

import numpy as np
import pytest

from trainrig.config import to_toml
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.laws.learning_curves import (
    list_differences,
    read_csv_curves,
    read_curves,
    read_other_rates,
)
from trainrig.train.run_file.run_files import Pretraining


def write_csv(folder: Path, text: str) -> str:
    path = folder / "curve.csv"
    path.write_text(text)
    return str(path)


def write_run(folder: Path, steps: int, done: int, cut_from: int | None = None) -> Path:
    """Write the folder of a run of `steps` steps, of which `done` are trained."""
    run = Pretraining.model_validate(
        {
            "tokens": "tokens",
            "output": str(folder),
            "model": {"layers": 1, "channels": 8, "heads": 1, "positions": 8},
            "batches": {"sequence_length": 8, "global_batch": 1, "micro_batch": 1},
            "training": {
                "steps": steps,
                "optimizer": {"kind": "AdamW", "lr": 0.01},
                "schedule": {"kind": "Linear", "warmup": 2},
            },
        }
    )
    folder.mkdir()
    (folder / "run.toml").write_text(to_toml(run))
    lines = []
    for step in range(1, done + 1):
        rate = 0.01 * run.training.schedule.multiplier(step - 1, steps)
        if cut_from is not None and step >= cut_from:
            rate /= 2
        line = {"step": step, "attempt": 1, "time": 0.0, "train/loss": 2.0, "train/lr": rate}
        lines.append(line)
        if step % 2 == 0:
            lines.append({"step": step, "attempt": 1, "time": 0.0, "eval/loss": 4 - 0.1 * step})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_rates_between_rows_are_interpolated_and_steps_to_come_have_no_loss(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "Step,val/loss,LR\n2,4.0,.2\n4,3.0,.4\n6,,.0\n")
    (curve,) = read_csv_curves(path)
    assert curve.rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.2, 0])
    assert curve.steps.tolist() == [2, 4]
    assert (curve.done, curve.total) == (4, 6)


def test_a_column_of_runs_separates_curves(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "run,step,loss,lr\na,1,4,.1\nb,2,3,.1\na,2,3.5,.1\nb,1,5,.1\n")
    first, second = read_curves(path)
    assert (first.name, first.losses.tolist()) == ("a", [4, 3.5])
    assert (second.name, second.losses.tolist()) == ("b", [5, 3])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,loss\n1,4\n", "no column for learning rate among step, loss.*lr"),
        ("loss,lr\n4,.1\n", "no column for step"),
        ("step,lr\n4,.1\n", "no column for loss"),
        ("step,loss,lr\n1,4,.1\n2,3,-.1\n", r"curve.csv:3: learning rate -0.1: give a number"),
        ("step,loss,lr\n1,4,\n", r":2: learning rate nan"),
        ("step,loss,lr\n1,nan,.1\n", r":2: the loss is not a number; leave the cell empty"),
        ("step,loss,lr\n1,-2,.1\n", r":2: loss -2: give a number above 0"),
        ("step,loss,lr\n1,inf,.1\n", r":2: loss inf"),
        ("step,loss,lr\n0,2,.1\n", r":2: step 0: give a whole number"),
        ("step,loss,lr\n1.5,2,.1\n", r":2: step 1.5"),
        ("step,loss,lr\n1e12,2,.1\n", r":2: step 1e\+12: give at most 10,000,000"),
        ("step,loss,lr\n1,2,.1\n1,3,.1\n", "step 1 of .* is given twice"),
        ("step,loss,lr\n1,,.1\n2,,.1\n", "has no loss; give the losses of the steps so far"),
        ("step,loss,lr\n1,2,0\n2,2,0\n", "all learning rates of .* are 0"),
        ("step,loss,lr\n1,2,much\n", r":2: lr should be a number, found 'much'"),
    ],
)
def test_bad_rows_are_refused_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_csv_curves(write_csv(tmp_path, text))


def test_a_run_folder_has_measured_rates_and_those_of_its_schedule(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 20, 8)
    (curve,) = read_curves(str(folder))
    assert (curve.done, curve.total) == (8, 20)
    assert curve.steps.tolist() == [2, 4, 6, 8]
    assert curve.losses == pytest.approx([3.8, 3.6, 3.4, 3.2])
    assert curve.rates[:2] == pytest.approx([0.005, 0.01])
    assert curve.rates[2:] == pytest.approx(0.01 * np.arange(17, -1, -1) / 18)


def test_steps_before_the_first_row_continue_a_rise_but_not_a_fall(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "step,loss,lr\n3,4,.1\n4,3,.3\n")
    assert read_csv_curves(path)[0].rates == pytest.approx([0, 0, 0.1, 0.3])
    path = write_csv(tmp_path, "step,loss,lr\n3,4,.3\n4,3,.1\n")
    assert read_csv_curves(path)[0].rates == pytest.approx([0.3, 0.3, 0.3, 0.1])


@pytest.mark.parametrize("value", ["null", "NaN", "Infinity", "-1"])
def test_a_held_out_loss_that_is_no_number_is_refused_with_its_step(
    tmp_path: Path, value: str
) -> None:
    folder = write_run(tmp_path / "run", 20, 8)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f'{{"step": 8, "attempt": 2, "time": 0.0, "eval/loss": {value}}}\n')
    with pytest.raises(DataError, match=r"the held-out loss of step 8 is .*resume"):
        read_curves(str(folder))


def test_runs_with_too_many_steps_are_refused(tmp_path: Path) -> None:
    folder = str(write_run(tmp_path / "run", 20, 8))
    with pytest.raises(ConfigError, match=r"1,000,000,000,000 steps.*at most 10,000,000"):
        read_other_rates(folder, ["training.steps=1000000000000"])


def test_a_run_of_another_model_is_named_with_its_differences(tmp_path: Path) -> None:
    first = write_run(tmp_path / "first", 20, 8)
    second = write_run(tmp_path / "second", 30, 8)
    assert not list_differences(str(first), str(second))
    file = second / "run.toml"
    file.write_text(file.read_text().replace("channels = 8", "channels = 16"))
    assert list_differences(str(first), str(second)) == ["model.channels"]


def test_a_cut_of_the_rate_lasts(tmp_path: Path) -> None:
    whole = read_curves(str(write_run(tmp_path / "whole", 20, 8)))[0]
    cut = read_curves(str(write_run(tmp_path / "cut", 20, 8, cut_from=5)))[0]
    assert cut.rates[:4] == pytest.approx(whole.rates[:4])
    assert cut.rates[4:] == pytest.approx(whole.rates[4:] / 2)


def test_another_schedule_changes_only_keys_that_the_law_knows(tmp_path: Path) -> None:
    folder = str(write_run(tmp_path / "run", 20, 8))
    rates = read_other_rates(folder, ["training.schedule.kind=Constant", "training.steps=30"])
    assert rates == pytest.approx([0.005] + 29 * [0.01])
    with pytest.raises(ConfigError, match=r"--set training.optimizer.lr=1: only training.schedule"):
        read_other_rates(folder, ["training.optimizer.lr=1"])


def test_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 20, 0)
    with pytest.raises(DataError, match=r"no step is in metrics.jsonl yet"):
        read_curves(str(folder))
    with pytest.raises(
        DataError, match=r"no held-out loss is in metrics.jsonl yet.*held_out.every"
    ):
        read_curves(str(write_run(tmp_path / "begun", 20, 1)))
