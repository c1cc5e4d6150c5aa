"""Weights & Biases and MLflow with their own packages, offline, through kills and rollbacks.

The packages are extras: where they are not installed, these tests do not run.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainrig.errors import ConfigError
from trainrig.train.run.export import Exporter
from trainrig.train.run.metrics import MetricsWriter, read_series
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.sinks import MLflow, WandB, read_history
from trainrig.train.spikes import Spikes

SPIKES = Spikes(margin=1, longest=4)
# A driver that is killed: it sends its data, and waits for its end.
KILLED = """
import sys, time
from test_trackers import make_exporter
exporter = make_exporter(sys.argv[1], sys.argv[2])
exporter.send_new()
print("sent", flush=True)
time.sleep(600)
"""


def log_steps(folder, steps, attempt, level):
    writer = MetricsWriter(folder, attempt, steps[0] - 1)
    for step in steps:
        layers = {f"layers/{number:02d}/grad_norm": 1 / 3 for number in range(60)}
        writer.write(step, {"train/loss": level + step, "train/data_step": step - 1, **layers})
        if step % 5 == 0:
            writer.write(step, {"eval/loss": level + step + 0.5})
    writer.close()


def make_exporter(folder, kind):
    sinks = {"WandB": WandB(mode="offline"), "MLflow": MLflow(uri=f"file:{folder}/mlruns")}
    return Exporter(folder, [sinks[kind]], SPIKES)


def send_and_be_killed(folder, kind):
    command = [sys.executable, "-c", KILLED, folder, kind]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    driver = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert driver.stdout is not None and driver.stdout.readline() == "sent\n"
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()


def log_disturbed_run(folder, kind):
    """Log a run with a kill of the ranks, one of the driver, a rollback of a spike, and its end."""
    run = RunFolder(folder)
    run.take_attempt(0)
    log_steps(folder, range(1, 21), 1, 0.0)
    run.take_attempt(15)
    log_steps(folder, range(16, 31), 2, 0.0)  # killed at 20, and repeated from 15
    send_and_be_killed(folder, kind)
    run.record("step_skipped", attempt=2, step=30, data_step=30, what="outlier")
    run.take_attempt(25, skip=(29, 34))
    run.take_attempt(25)
    last = make_exporter(folder, kind)
    last.send_new()
    log_steps(folder, range(26, 46), 4, 100.0)
    assert last.send_new(over=True)
    Path(folder, "report.html").write_text("<p>the report</p>")
    last.close()


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the server's other stores are heavy
    monkeypatch.setenv("WANDB_SILENT", "true")
    folder = tmp_path / "run-a"
    folder.mkdir()
    (folder / "run.toml").write_text('stage = "pretrain"\n[training]\nsteps = 45\n')
    return str(folder)


def count_steps(folder):
    return {line["step"]: line["train/loss"] for line in read_series(folder)}


@pytest.mark.slow
def test_wandb_has_each_step_once_as_it_counts(run):
    pytest.importorskip("wandb")
    log_disturbed_run(run, "WandB")
    files = sorted(Path(run, "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2  # one for each driver
    assert b"train/loss" in files[0].read_bytes()  # everything but what W&B still had in memory
    assert all(RunFolder(run).read_identity() in file.name for file in files)
    found = list(read_history(Path(run, "wandb"), RunFolder(run).read_identity()))
    assert [line["_step"] for line in found] == list(range(1, 46))
    assert {line["_step"]: line["train/loss"] for line in found} == count_steps(run)
    assert [line["_step"] for line in found if "eval/loss" in line] == list(range(5, 46, 5))
    (report,) = Path(run, "wandb").glob("offline-run-*/files/report.html")
    assert report.read_text() == "<p>the report</p>"


@pytest.mark.slow
def test_mlflow_has_each_step_once_as_it_counts(run):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    log_disturbed_run(run, "MLflow")
    client = MlflowClient(tracking_uri=f"file:{run}/mlruns")
    experiment = client.get_experiment_by_name("trainrig")
    (mine,) = client.search_runs([experiment.experiment_id])
    assert mine.info.status == "FINISHED" and mine.data.tags["trainrig.run"]
    found = client.get_metric_history(mine.info.run_id, "train/loss")
    assert [metric.step for metric in found] == list(range(1, 46))
    assert {metric.step: metric.value for metric in found} == count_steps(run)
    held_out = client.get_metric_history(mine.info.run_id, "eval/loss")
    assert [metric.step for metric in held_out] == list(range(5, 46, 5))
    assert mine.data.params == {"stage": "pretrain", "training.steps": "45"}
    report = client.download_artifacts(mine.info.run_id, "report.html")
    assert Path(report).read_text() == "<p>the report</p>"


@pytest.mark.parametrize(("sink", "extra"), [(WandB(), "wandb"), (MLflow(), "mlflow")])
def test_a_package_that_is_not_there_is_named_with_its_extra(sink, extra, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"pip install -e '\.\[{extra}\]'"):
        sink.check("/runs/a")


def test_offline_files_do_not_go_to_a_bucket(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with pytest.raises(ConfigError, match="no offline files to a bucket"):
        WandB(mode="offline").check("s3://bucket/run")


def test_a_password_in_a_run_file_is_refused():
    with pytest.raises(ValueError, match="MLFLOW_TRACKING_USERNAME"):
        MLflow(uri="https://me:secret@mlflow.example/")
