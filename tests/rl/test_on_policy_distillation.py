"""On-policy distillation in the training loop: a student learns on its own answers."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.rollout_runs import train_run

from trainrig.check import describe
from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import count_parameters
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.objectives.log_probabilities import read_tokens
from trainrig.objectives.on_policy_distillation import TEACHER_MODEL
from trainrig.rl.reinforcement_stage import prepare
from trainrig.tokens.batches import IGNORE, OLD, TEACHER_TOKENS, TOKEN_ADVANTAGES
from trainrig.train import checkpoint
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import list_stored_batches

AWAY = "train/diagnostics/teacher_divergence"


@pytest.fixture(scope="module")
def teacher(encoder, tmp_path_factory):
    """Return a model of other sizes with confident predictions."""
    folder = str(tmp_path_factory.mktemp("teacher") / "run")
    config = DecoderConfig(layers=1, channels=48, heads=4, positions=64, vocabulary=336)
    model = Decoder(config)
    initialise(model, seed=7)
    with torch.no_grad():
        model.embedding.weight.mul_(12)
    checkpoint.write_model(folder, config, encoder.text, model.state_dict())
    return folder


@pytest.fixture(scope="module")
def make_student(make_run, teacher):
    """Return `make_student(output, estimator, …)`, which makes a run file of a few steps."""

    def make(output, estimator="full", **changes):
        objective = {"kind": "OnPolicyDistillation", "estimator": estimator}
        wanted = {"rewards": (), "teacher": teacher, "objective": objective, **changes}
        rollouts = {"samples": 2, "prompts": 8, "updates": 2, **changes.pop("rollouts", {})}
        training = {"steps": 4, **changes.pop("training", {})}
        return make_run(output, **wanted | {"rollouts": rollouts, "training": training})

    return make


def read_outcome(job):
    """Return the bytes of the run's batches and final weights."""
    stored = [
        (Path(batch.folder) / file["name"]).read_bytes()
        for batch in list_stored_batches(RunFolder(job.folder))
        for file in batch.files
    ]
    weights = checkpoint.open_model(job.folder).build().state_dict()
    return stored, {name: t.numpy().tobytes() for name, t in weights.items()}


@pytest.fixture(scope="module", params=["full", "sampled"])
def whole(request, ranks, make_student, tmp_path_factory):
    """Return an estimator, and an undisturbed run of one rank."""
    output = tmp_path_factory.mktemp("student") / "run"
    return request.param, train_run(ranks, make_student(output, request.param), 1)


@pytest.mark.slow
def test_weights_are_the_same_at_any_number_of_ranks_and_after_a_loss(
    whole, ranks, make_student, tmp_path
):
    estimator, job = whole
    run = make_student(
        tmp_path / "run", estimator, training={"checkpoints": {"every": 2, "keep": 9}}
    )
    train_run(ranks, run, 3)
    shutil.rmtree(tmp_path / "run/checkpoints/step_00000004")
    (last,) = (tmp_path / "run/online").glob("batch_00000001-*")
    shutil.rmtree(last)
    found = train_run(ranks, run, 2, resume=True)
    attempts = [batch.attempt for batch in list_stored_batches(RunFolder(found.folder))]
    assert attempts == [1, 2]
    assert read_outcome(found) == read_outcome(job)


@pytest.mark.slow
def test_teacher_log_probabilities_are_stored_at_trained_tokens(whole, teacher):
    estimator, job = whole
    model = checkpoint.open_model(teacher).build()
    micro = list_stored_batches(RunFolder(job.folder))[0].read_micro_batch(0)
    if estimator == "full":
        assert TEACHER_TOKENS not in micro.arrays
        return
    ids = torch.from_numpy(micro.ids)
    targets = torch.from_numpy(micro.targets)
    with torch.no_grad():
        read = read_tokens(model, ids, targets, 1.0, 320)
    np.testing.assert_allclose(micro.arrays[TEACHER_TOKENS], read.log_probabilities_BT, atol=1e-5)
    advantages = micro.arrays[TEACHER_TOKENS] - micro.arrays[OLD]
    there = micro.targets != IGNORE
    np.testing.assert_allclose(micro.arrays[TOKEN_ADVANTAGES][there], advantages[there], atol=1e-5)


@pytest.mark.slow
def test_a_student_comes_close_to_its_teacher(ranks, make_student, tmp_path):
    run = make_student(
        tmp_path / "run",
        rewards=({"kind": "ExactAnswer"},),  # logged only
        rollouts={"updates": 1, "micro_batch": 16},
        training={"steps": 30, "optimizer": {"kind": "AdamW", "lr": 2e-2}},
    )
    lines = metrics.read_series(train_run(ranks, run, 1).folder)
    away = [line[AWAY] for line in lines]
    assert np.mean(away[-5:]) < 0.4 * np.mean(away[:3])
    assert away == pytest.approx([line["train/loss"] for line in lines], rel=1e-5)
    assert "train/diagnostics/reward_exact" in lines[-1]


def test_check_counts_the_teacher_and_its_content_is_an_input(make_student, teacher, tmp_path):
    run = make_student(tmp_path / "run")
    job, inputs, counted = prepare(run)
    count = count_parameters(job.frozen[TEACHER_MODEL].model).total
    assert counted["parameters_of_teacher"] == count == describe(run)["parameters_of_teacher"]
    assert inputs["teacher"] == checkpoint.compute_content_key(checkpoint.resolve(teacher))


@pytest.mark.slow
def test_a_teacher_that_cannot_teach_is_refused_in_one_line(
    make_student, make_tokens, encoder, tmp_path
):
    def folder(name, text, **changes):
        sizes = {"layers": 1, "channels": 16, "heads": 2, "positions": 48, "vocabulary": 336}
        config = DecoderConfig(**sizes | changes)
        model = Decoder(config)
        initialise(model, seed=1)
        checkpoint.write_model(str(tmp_path / name), config, text, model.state_dict())
        return str(tmp_path / name)

    other = Path(make_tokens(tmp_path / "made", entries=300), "tokenizer.json").read_text()
    refused = {
        folder("other", other): "has another tokenizer",
        folder("short", encoder.text, positions=20): "20 positions, but rollouts may need 37",
        folder("score", encoder.text, head="score"): "does not predict the next token",
    }
    for path, said in refused.items():
        with pytest.raises(ConfigError, match=f"^teacher: {path}.*{said}") as raised:
            prepare(make_student(tmp_path / "run", teacher=path))
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective": {"kind": "GRPO"}}, "teacher: objective GRPO"),
        ({"teacher": None}, "teacher: .* needs one; name a checkpoint"),
        ({"rollouts": {"redraws": 1}}, "teacher also where rewards"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, said, make_student, tmp_path):
    with pytest.raises(ValueError, match=said):
        make_student(tmp_path / "run", **changes)
