import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import wait_until

from trainrig import config, hardware, storage
from trainrig.config import to_toml
from trainrig.errors import ConfigError, DataError, OutputTaken
from trainrig.manifest import read_manifest
from trainrig.models.decoder import count_parameters
from trainrig.train.checkpoint import VERIFIED
from trainrig.train.elastic import trainer
from trainrig.train.pretrain import prepare, pretrain
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.run_files import Pretraining


@pytest.fixture
def finished(without_ray, make_run, tmp_path):
    run = make_run(tmp_path / "run")
    return run, pretrain(run)


def refuse_to_train(*_):
    raise AssertionError("there was nothing to train")


@pytest.mark.slow
def test_a_finished_run_says_what_it_made(finished):
    run, manifest = finished
    last = "checkpoints/step_00000012/attempt-0001"
    losses = [line["train/loss"] for line in metrics.read_series(run.output)]
    assert manifest.counts == {
        "steps": 12,
        "train_tokens": 12 * 8 * 32,
        "parameters": count_parameters(prepare(run).model).total,
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "restarts": 0,
        "checkpoint": last,
    }
    assert manifest == read_manifest(run.output)
    there = {f"{last}/{path.name}" for path in Path(run.output, last).iterdir()}
    there -= {f"{last}/{VERIFIED}"}  # these record that the files were read back
    assert set(manifest.files) == there | {"run.toml"} and len(there) == 4
    for name, entry in manifest.files.items():
        assert entry.sha256 == storage.compute_sha256(f"{run.output}/{name}")


@pytest.mark.slow
def test_the_run_file_in_a_run_folder_is_the_run(finished):
    run, _ = finished
    assert config.load(Pretraining, f"{run.output}/run.toml") == run


def test_a_second_copy_that_cannot_be_written_is_refused_before_the_start(make_run, tmp_path):
    (tmp_path / "file").write_text("where a folder should be")
    run = make_run(tmp_path / "run", training={"checkpoints": {"copy_to": f"{tmp_path}/file/a"}})
    with pytest.raises(ConfigError, match=r"file/a.*file is a file"):
        pretrain(run)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_finished_run_is_not_made_again(finished, monkeypatch):
    run, manifest = finished
    monkeypatch.setattr(trainer, "run", refuse_to_train)
    monkeypatch.setattr(trainer, "check_fit", lambda *_: None)
    assert pretrain(run) == manifest
    # The number of workers is not part of the run's identity.
    assert pretrain(run.model_copy(update={"workers": 7})) == manifest


@pytest.mark.slow
def test_a_folder_of_another_run_is_refused_by_what_differs(finished, make_run, monkeypatch):
    run, _ = finished
    monkeypatch.setattr(trainer, "run", refuse_to_train)
    monkeypatch.setattr(trainer, "check_fit", lambda *_: None)
    other = make_run(run.output, training={"optimizer": {"kind": "AdamW", "lr": 0.02}})
    with pytest.raises(OutputTaken, match=r"optimizer\.lr: 0.01 there, 0.02 here"):
        pretrain(other)


@pytest.mark.slow
def test_a_folder_of_a_run_on_other_tokens_is_refused(finished, make_tokens, monkeypatch, tmp_path):
    run, _ = finished
    monkeypatch.setattr(trainer, "run", refuse_to_train)
    monkeypatch.setattr(trainer, "check_fit", lambda *_: None)
    other = make_tokens(tmp_path, held_out=0.4)
    with pytest.raises(OutputTaken, match="input `tokens` has other contents"):
        pretrain(run.model_copy(update={"tokens": other}))


@pytest.mark.slow
def test_an_interrupted_run_continues(without_ray, make_run, monkeypatch, tmp_path):
    run = make_run(tmp_path / "run")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(trainer, "run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        pretrain(run)
    assert not (tmp_path / "run" / "manifest.json").exists()
    assert pretrain(run).counts["steps"] == 12


@pytest.mark.slow
def test_a_run_whose_metrics_are_gone_is_not_called_finished(without_ray, make_run, tmp_path):
    run = make_run(tmp_path / "run")
    pretrain(run)
    (tmp_path / "run" / "manifest.json").unlink()
    (tmp_path / "run" / "metrics.jsonl").unlink()
    with pytest.raises(DataError, match=r"metrics.jsonl: missing, though"):
        pretrain(run)


def test_invalid_settings_are_rejected_before_any_worker_starts(make_run, monkeypatch, tmp_path):
    monkeypatch.setattr(trainer, "run", refuse_to_train)
    monkeypatch.setattr(trainer, "check_fit", lambda *_: None)
    cases = {
        r"schedule.warmup \(12 steps\) must end": {
            "training": {"schedule": {"kind": "Cosine", "warmup": 12}}
        },
        r"model.vocabulary \(300\) is below the tokenizer's 320": {"model": {"vocabulary": 300}},
        "has no source 'wbe'; did you mean 'web'": {"batches": {"weights": {"wbe": 1.0}}},
        r"source '\w+' would be read .* in 12 steps, beyond its cap of 0.1 epochs; train for": {
            "batches": {"epochs": 0.1}
        },
    }
    for message, changes in cases.items():
        with pytest.raises(ConfigError, match=message):
            pretrain(make_run(tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


# --- stages that are added during the run

ROOM = {"base_sequence_length": 8, "longest_sequence_length": 32, "sequence_length": 16}
LONGER = (
    {"from_step": 6, "sequence_length": 32, "weights": {"books": 3.0, "web": 1.0}},
    {"from_step": 9, "global_batch": 4},
)


def stop_after(step, without_ray, make_run, monkeypatch, run):
    """Train `run` up to `step`, where its driver and workers end."""
    short = run.training.model_copy(update={"steps": step})
    trains = trainer.run

    def cut_short(job, workers):
        trains(dataclasses.replace(job, training=short), workers)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(trainer, "run", cut_short)
        pretrain(run)


@pytest.fixture
def stopped_at_six(without_ray, make_run, monkeypatch, tmp_path):
    """Return a run of constant rate, stopped at its checkpoint of step 6, before any stage."""
    training = {"schedule": {"kind": "Constant", "warmup": 0}, "checkpoints": {"every": 3}}

    def make(folder, stages=(), **more):
        batches = ROOM | {"stages": stages} | more
        return make_run(tmp_path / folder, training=training, batches=batches)

    run = make("run")
    stop_after(6, without_ray, make_run, monkeypatch, run)
    assert not (tmp_path / "run" / "manifest.json").exists()
    return make


def test_emulated_numbers_are_warned_of_before_a_run_begins(
    make_run, monkeypatch, caplog, tmp_path
):
    def begin(*_):
        assert "this CPU has no hardware for bfloat16" in caplog.text
        raise KeyboardInterrupt

    monkeypatch.setattr(hardware, "cpu_has_bfloat16", lambda: False)
    monkeypatch.setattr(trainer.ray_pools, "find_pools", lambda: [])
    monkeypatch.setattr(trainer.ray_pools, "contains_gpus", lambda pools: False)
    monkeypatch.setattr(trainer, "check_fit", lambda *_: None)
    monkeypatch.setattr(trainer, "run", begin)
    with pytest.raises(KeyboardInterrupt):
        pretrain(make_run(tmp_path / "run", training={"precision": {"compute": "bfloat16"}}))


@pytest.mark.slow
def test_a_stage_added_ahead_of_a_run_gives_the_run_that_had_it_from_the_start(
    stopped_at_six, last_weights
):
    added = stopped_at_six("run", LONGER)
    from_start = stopped_at_six("from-start", LONGER)
    assert pretrain(added).counts["steps"] == 12
    pretrain(from_start)
    series = [
        [(at["train/loss"], at["train/tokens"]) for at in metrics.read_series(run.output)]
        for run in (added, from_start)
    ]
    assert series[0] == series[1] and len(series[0]) == 12
    assert last_weights(prepare(added)) == last_weights(prepare(from_start))
    assert config.load(Pretraining, f"{added.output}/run.toml") == added
    # Eight rows of 32 positions at the seventh step, without the tokens trained before.
    tokens = [at for _, at in series[0]]
    assert 8 * 16 < tokens[6] - tokens[5] <= 8 * 32 and tokens[11] - tokens[10] <= 4 * 32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "more", "named"),
    [
        (({"from_step": 5, "sequence_length": 32},), {}, r"segments\[1\]\.first_sample: absent"),
        ((), {"longest_sequence_length": 64}, "batches.longest_sequence_length: 32 there, 64 here"),
        ((), {"seed": 1}, "batches.seed: 0 there, 1 here"),
    ],
)
def test_completed_steps_cannot_be_changed(stopped_at_six, monkeypatch, stages, more, named):
    before = Path(stopped_at_six("run").output, "run.toml").read_text()
    monkeypatch.setattr(trainer, "run", refuse_to_train)
    with pytest.raises((ConfigError, OutputTaken), match=named):
        pretrain(stopped_at_six("run", stages, **more))
    assert Path(stopped_at_six("run").output, "run.toml").read_text() == before


@pytest.mark.slow
def test_a_finished_run_is_not_the_run_of_other_stages(stopped_at_six, monkeypatch):
    manifest = pretrain(stopped_at_six("run", LONGER))
    monkeypatch.setattr(trainer, "run", refuse_to_train)
    assert pretrain(stopped_at_six("run", LONGER)) == manifest
    for stages in ((), LONGER[:1]):
        with pytest.raises(OutputTaken, match=r"another run \(batches\.stages"):
            pretrain(stopped_at_six("run", stages))


def test_a_folder_that_tokenize_did_not_write_is_refused(make_run, tmp_path):
    run = make_run(tmp_path / "run").model_copy(update={"tokens": str(tmp_path)})
    with pytest.raises(DataError, match=r"no manifest.json.*not"):
        pretrain(run)


# --- the driver itself is killed

COMMAND = "from trainrig.cli import main; main()"


def start(run_file, *more):
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "pretrain", str(run_file), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.chaos
def test_the_same_command_finishes_a_run_whose_driver_was_killed(
    ranks, make_job, make_run, last_weights, tmp_path
):
    # Long enough that it is not over before its first checkpoint has been seen.
    training = {"steps": 100, "checkpoints": {"every": 10, "keep": 100}}
    often = {"epochs": 20.0}
    run = make_run(tmp_path / "run", training=training, batches=often)
    (tmp_path / "run.toml").write_text(to_toml(run))
    killed = start(tmp_path / "run.toml")
    saved = "checkpoints/*/*/manifest.json"
    wait_until(lambda: list(Path(run.output).glob(saved)), process=killed, seconds=240)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not Path(run.output, "manifest.json").exists()

    again = start(tmp_path / "run.toml", "--json")
    out, said = again.communicate(timeout=300)
    assert again.returncode == 0, said.decode()
    counts = json.loads(out)
    assert (counts["steps"], counts["restarts"]) == (100, 1)
    resumed = RunFolder(run.output).read_attempts()[1].resumed_step
    assert 10 <= resumed < 100 and resumed % 10 == 0

    undisturbed = make_job(tmp_path / "undisturbed", training=training, batches=often)
    ranks(1, "train", job=undisturbed, attempt=RunFolder(undisturbed.folder).take_attempt(0))
    series = [
        [line["train/loss"] for line in metrics.read_series(folder)]
        for folder in (run.output, undisturbed.folder)
    ]
    assert series[0] == series[1] and len(series[0]) == 100
    assert last_weights(make_job(run.output)) == last_weights(undisturbed)
