"""`predict RUN` and `predict CSV`: the schedules that are predicted, the page, and refusals."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from trainrig import cli
from trainrig.config import to_toml
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.laws.annealing_law import Annealing
from trainrig.scaling.plan.curve_page import write_curve
from trainrig.scaling.regression.curve_fit import CurveFit
from trainrig.scaling.regression.curve_prediction import (
    describe_curve,
    predict_curve,
)
from trainrig.train.run_file.run_files import Pretraining

TRUTH = Annealing(L0=1.6, A=5.0, alpha=0.45, C=1.5e-3, memory=0.98, peak=3e-3)
FEW = CurveFit(draws=10)
STEPS = 1_000


def write_run(folder: Path, kind: str, done: int) -> str:
    """Write the folder of a run whose losses follow the law, and return its path."""
    run = Pretraining.model_validate(
        {
            "tokens": "tokens",
            "output": str(folder),
            "model": {"layers": 1, "channels": 8, "heads": 1, "positions": 8},
            "batches": {"sequence_length": 8, "global_batch": 1, "micro_batch": 1},
            "training": {
                "steps": STEPS,
                "optimizer": {"kind": "AdamW", "lr": TRUTH.peak},
                "schedule": {"kind": kind, "warmup": 50},
            },
        }
    )
    multiplier = run.training.schedule.multiplier
    rates = np.array([TRUTH.peak * multiplier(step, STEPS) for step in range(STEPS)])
    losses = TRUTH.compute_losses(rates)
    lines: list[dict[str, float]] = []
    for step in range(1, done + 1):
        own = {"step": step, "attempt": 1, "time": 0.0}
        lines.append({**own, "train/loss": 2.0, "train/lr": rates[step - 1]})
        if step % 20 == 0:
            lines.append({**own, "eval/loss": losses[step - 1]})
    folder.mkdir()
    (folder / "run.toml").write_text(to_toml(run))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


def write_table(path: Path, rates: Sequence[float], until: int) -> str:
    """Write a CSV of every 20th step, with losses of the law up to step `until`."""
    losses = TRUTH.compute_losses(rates)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss", "lr"])
        for step in range(20, len(rates) + 1, 20):
            writer.writerow([step, losses[step - 1] if step <= until else "", rates[step - 1]])
    return str(path)


def test_a_running_run_is_predicted_under_three_schedules(tmp_path: Path) -> None:
    running = write_run(tmp_path / "running", "Cosine", 700)
    other = write_run(tmp_path / "other", "WarmupStableDecay", STEPS)
    answer = predict_curve(
        running, [other], decay=100, changes=["training.schedule.kind=Constant"], settings=FEW
    )
    for end, rates in zip(answer.found.predictions, answer.rates, strict=True):
        assert end.loss == pytest.approx(TRUTH.compute_losses(rates)[-1], rel=5e-3)
        assert end.interval is not None
    assert [end.steps for end in answer.found.predictions] == [STEPS, 800, STEPS]
    assert answer.rates[1][-1] == 0
    assert answer.rates[2][-1] == TRUTH.peak
    assert (answer.found.done, answer.found.curves) == (700, 2)


def test_a_decay_is_a_quarter_of_the_steps_unless_given(tmp_path: Path) -> None:
    running = write_run(tmp_path / "running", "Cosine", 700)
    assert predict_curve(running, settings=FEW).found.predictions[1].steps == 875


def test_no_decay_is_predicted_before_the_rate_has_fallen(tmp_path: Path) -> None:
    stable = write_run(tmp_path / "stable", "WarmupStableDecay", 700)
    with pytest.raises(DataError, match=r"has not fallen yet.*--curves RUN"):
        predict_curve(stable, settings=FEW)
    constant = write_run(tmp_path / "constant", "Constant", 700)
    found = predict_curve(constant, settings=FEW).found
    assert [end.schedule for end in found.predictions] == ["the run's own schedule"]
    assert any("decay in 175 steps" in warning for warning in found.warnings)


def test_rows_without_a_loss_are_the_steps_to_come(tmp_path: Path) -> None:
    rates = [TRUTH.peak * (1 - step / 1_250) for step in range(STEPS)]
    path = write_table(tmp_path / "curve.csv", rates, 800)
    found = predict_curve(path, settings=FEW).found
    assert (found.done, found.predictions[0].steps) == (800, STEPS)
    truth = TRUTH.compute_losses(rates)[-1]
    assert found.predictions[0].loss == pytest.approx(truth, rel=0.01)
    with pytest.raises(ConfigError, match=r"--set changes the run file of a run, and a CSV"):
        predict_curve(path, changes=["training.steps=5"])


def test_the_command_predicts_a_run_and_writes_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = write_run(tmp_path / "running", "Cosine", 700)
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as end:
        cli.main(["predict", running, "--out", str(out), "--json"])
    assert end.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    record = json.loads((out / "curve.json").read_text())
    assert printed == {**record, "written": [str(out / "curve.json"), str(out / "report.html")]}
    assert "Learning curve" in (out / "report.html").read_text()


def test_the_description_has_a_line_for_each_schedule(tmp_path: Path) -> None:
    found = predict_curve(write_run(tmp_path / "running", "Cosine", 700), settings=FEW).found
    lines = list(describe_curve(found))
    assert [line.startswith("loss ") for line in lines[:3]] == [True, True, False]
    assert lines[0].endswith("after 1,000 steps: the run's own schedule")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--params", "1e9"], "--params does not go with a run or a CSV of losses"),
        (["--csv", "sizes.csv"], "--csv does not go with a run"),
        (["--epochs", "0"], "--epochs does not go with a run"),
        (["--decay", "1000000000000"], "1,000,000,000,700 steps"),
    ],
)
def test_options_of_laws_are_refused_for_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    running = write_run(tmp_path / "running", "Cosine", 700)
    with pytest.raises(SystemExit) as end:
        cli.main(["predict", running, *arguments])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_the_same_curve_twice_is_refused(tmp_path: Path) -> None:
    running = write_run(tmp_path / "running", "Cosine", 700)
    with pytest.raises(ConfigError, match=r"the same losses as .*leave it out"):
        predict_curve(running, [f"{running}/."], settings=FEW)


def test_a_run_with_another_peak_rate_brings_a_warning(tmp_path: Path) -> None:
    running = write_run(tmp_path / "running", "Cosine", 700)
    other = write_run(tmp_path / "other", "WarmupStableDecay", STEPS)
    assert not predict_curve(running, [other], settings=FEW).found.warnings
    file = Path(other) / "run.toml"
    file.write_text(file.read_text().replace("lr = 0.003", "lr = 0.006"))
    (warning,) = predict_curve(running, [other], settings=FEW).found.warnings
    assert f"{other} has another training.optimizer.lr" in warning


def test_the_page_does_not_replace_that_of_a_run(tmp_path: Path) -> None:
    running = write_run(tmp_path / "running", "Cosine", 700)
    with pytest.raises(ConfigError, match=r"is the folder of a run.*name another"):
        write_curve(predict_curve(running, settings=FEW), running)
    assert not (Path(running) / "report.html").exists()


def test_the_page_repeats_the_command_of_a_csv_with_several_runs(tmp_path: Path) -> None:
    rates = [TRUTH.peak * (1 - step / 1_250) for step in range(STEPS)]
    table = Path(write_table(tmp_path / "my curve.csv", rates, 800))
    lines = table.read_text().splitlines()
    table.write_text("\n".join(["run," + lines[0], *(f"first,{line}" for line in lines[1:])]))
    other = write_run(tmp_path / "other", "Cosine", 700)
    answer = predict_curve(str(table), [other], decay=60, settings=FEW)
    assert answer.found.run == "first"
    assert answer.command == f"trainrig predict '{table}' --curves {other} --decay 60"
    page, _ = write_curve(answer, str(tmp_path / "out"))[::-1]
    assert f"--curves {other} --decay 60" in Path(page).read_text()


def test_options_of_runs_are_refused_for_laws(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["predict", "hoffmann", "--decay", "100"])
    assert end.value.code == 2
    assert "--decay does not go with a law" in capsys.readouterr().err


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    running = write_run(tmp_path / "running", "Cosine", 700)
    pages = []
    for _ in range(2):
        write_curve(predict_curve(running, settings=FEW), str(tmp_path / "out"))
        pages.append((tmp_path / "out" / "report.html").read_text())
    assert pages[0] == pages[1]
