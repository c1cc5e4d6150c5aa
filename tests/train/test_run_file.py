import dataclasses

import pytest
import torch

from trainrig.config import build
from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.parallel.layer_compilation import Compile
from trainrig.train import training_job
from trainrig.train.run_file.run_file_checks import check_positions
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.training_settings import Training

RUN = {
    "stage": "pretrain",
    "tokens": "tokens",
    "output": "run",
    "model": {"layers": 2, "channels": 32, "heads": 4, "positions": 64},
    "batches": {"sequence_length": 64, "global_batch": 8, "micro_batch": 2},
    "training": {"steps": 100},
}


def change_part(part, **keys):
    return RUN | {part: RUN[part] | keys}


def test_a_run_file_needs_to_say_little():
    run = build(Pretraining, RUN, "run.toml")
    assert run.training == Training(steps=100)
    assert run.training.optimizer.kind == "AdamW" and run.training.schedule.kind == "Cosine"


@pytest.mark.parametrize(
    ("said", "compiled"),
    [
        ({}, Compile()),
        ({"steps": 999}, None),
        ({"compile": False}, False),
        ({"compile": {"dynamic": True}}, Compile(dynamic=True)),
        ({"precision": {"compute": "float8"}}, Compile()),
        ({"parallel": {"kind": "FSDP", "tensor": {"ranks": 2}}}, None),
        ({"parallel": {"kind": "FSDP", "pipeline": {"ranks": 2}}}, Compile()),
    ],
)
def test_layers_are_compiled_on_gpus_unless_the_file_or_the_layout_says_otherwise(said, compiled):
    training = build(
        Pretraining, change_part("training", **{"steps": 1000, **said}), "run.toml"
    ).training
    assert training.resolve(has_bfloat16=True, compiles=True).compile == compiled
    assert training.resolve(has_bfloat16=True, compiles=False).compile == training.compile


def test_sequences_longer_than_the_positions_are_refused_when_the_file_is_read():
    with pytest.raises(
        ConfigError, match=r"sequence_length \(65 tokens\) is beyond the model's 64"
    ):
        build(Pretraining, change_part("batches", sequence_length=65), "run.toml")


def test_a_sequence_may_fill_the_positions():
    model = build(Pretraining, RUN, "run.toml").model
    check_positions(64, model)
    with pytest.raises(ValueError, match=r"set model.positions = 65"):
        check_positions(65, model)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("steps", 0),
        ("clip_norm", 0.0),
        ("checkpoints.every", 0),
        ("checkpoints.keep", 0),
        ("faults.max_restarts", -1),
        ("threads", 0),
        ("faults.collective_timeout", 0.0),
        ("seed", -1),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(key, value):
    table, _, name = key.rpartition(".")
    settings = {table: {name: value}} if table else {name: value}
    with pytest.raises(ConfigError, match=rf"run.toml: training.{key}: "):
        build(Pretraining, change_part("training", **settings), "run.toml")


def test_a_run_folder_may_be_in_a_bucket():
    run = build(Pretraining, RUN | {"output": "s3://bucket/run"}, "run.toml")
    assert run.output == "s3://bucket/run"


def test_a_collective_waits_for_a_rank_that_compiles():
    plain = Training(steps=1, faults={"collective_timeout": 7.0, "start_limit": 90.0})
    compiled = plain.model_copy(update={"compile": Compile()})
    assert (plain.collective_timeout, compiled.collective_timeout) == (7.0, 90.0)


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_a_job_is_resolved_for_the_device_it_is_on(kind, monkeypatch, tmp_path):
    monkeypatch.setattr(training_job, "supports_bfloat16", lambda device: device.type == "cuda")
    monkeypatch.setattr(training_job, "can_compile", lambda: True)
    made = training_job.TrainingJob(
        "", DecoderConfig(**RUN["model"]), Training(steps=1000), tuple, ""
    )
    for compiles in (True, False):
        asked = dataclasses.replace(made, compiles_on_gpus=compiles)
        found = asked.resolve(torch.device(kind)).training
        gpu = kind == "cuda"
        assert found.precision.compute == ("bfloat16" if gpu else "float32")
        assert found.compile == (Compile() if gpu and compiles else None)
        assert asked.resolve(torch.device(kind)).resolve(torch.device(kind)).training == found
