import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from trainrig.config import build, to_toml
from trainrig.errors import ConfigError, DataError, OutputTaken
from trainrig.models.decoder import Decoder, initialise
from trainrig.train import checkpoint
from trainrig.train.elastic import trainer
from trainrig.train.pretrain import prepare, pretrain
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_start import warn_of_high_rate


@pytest.fixture(scope="module")
def earlier(ranks, make_run, tmp_path_factory):
    """Return the folder of a run of six steps with a peak rate of 0.01."""
    training = {"steps": 6, "checkpoints": {"every": 3}}
    run = make_run(tmp_path_factory.mktemp("earlier"), training=training)
    job = prepare(run)
    ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    Path(run.output, "run.toml").write_text(to_toml(run))
    return run.output


@pytest.fixture
def make_continued(without_ray, earlier, make_run, tmp_path):
    """Return `make_continued(lr=…)`: a run of six steps from the earlier run's weights."""

    def make(path=None, model=None, lr=0.002, **changes):
        training = {"steps": 6, "optimizer": {"kind": "AdamW", "lr": lr}}
        run = make_run(tmp_path / "continued", training=training, **changes)
        given = {"continue_from": path or earlier, "model": model}
        return Pretraining.model_validate(dict(run) | given)

    return make


def read_weights(path):
    return {
        name: value.numpy().tobytes() for name, value in checkpoint.open_model(path).weights.items()
    }


def test_a_continued_run_starts_with_the_weights_alone(make_continued, earlier, ranks):
    job = prepare(make_continued())
    before = checkpoint.open_model(earlier)
    (begun,) = ranks(1, "tensors", job=job, weights_from=job.initial_weights)
    assert begun["counters"] == (0, 0, 0)
    for name, value in before.weights.items():
        assert (begun[f"model.{name}"] == value.numpy()).all()
    assert all(not value.any() for name, value in begun.items() if "exp_avg" in name)


@pytest.mark.slow
def test_a_continued_run_trains_with_its_own_schedule(make_continued, earlier):
    run = make_continued()
    manifest = pretrain(run)
    lines = metrics.read_series(run.output)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert max(line["train/lr"] for line in lines) == pytest.approx(0.002)
    # Untrained weights begin near ln(vocabulary); these are trained.
    assert lines[0]["train/loss"] < metrics.read_series(earlier)[0]["train/loss"] - 0.3
    assert manifest.inputs["continue_from"] == checkpoint.compute_content_key(
        checkpoint.resolve(earlier)
    )
    assert manifest.counts["steps"] == 6


@pytest.mark.slow
def test_another_content_of_the_checkpoint_is_another_run(make_continued, earlier, monkeypatch):
    pretrain(make_continued())
    monkeypatch.setattr(trainer, "run", lambda *_: pytest.fail("there was nothing to train"))
    with pytest.raises(OutputTaken, match=r"input `continue_from`.*contents"):
        pretrain(make_continued(path=f"{earlier}/checkpoints/step_00000003"))


@pytest.mark.slow
def test_further_heads_are_kept_where_they_are_there_drawn_where_not_and_dropped_where_unasked(
    make_continued, make_run, ranks, earlier, tmp_path
):
    def started(path, weights):
        objective = {"kind": "CausalLM"}
        if weights:
            objective = {"kind": "MultiTokenPrediction", "further_weights": weights}
        run = make_continued(path=path)
        job = prepare(Pretraining.model_validate(dict(run) | {"objective": objective}))
        (begun,) = ranks(1, "tensors", job=job, weights_from=job.initial_weights)
        assert job.model.further_heads == len(weights)
        return job, {
            name.removeprefix("model."): value
            for name, value in begun.items()
            if name.startswith("model.")
        }

    there = checkpoint.open_model(earlier)
    job, begun = started(earlier, (1.0,))
    fresh = Decoder(job.model)
    initialise(fresh, job.training.seed)
    drawn = {n: value for n, value in fresh.state_dict().items() if n.startswith("further_layers")}
    assert begun.keys() == there.weights.keys() | drawn.keys() > there.weights.keys()
    for name, value in {**there.weights, **drawn}.items():
        assert (begun[name] == value.numpy()).all(), name
    job = replace(job, folder=str(tmp_path / "one_head"))
    ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    _, both = started(job.folder, (1.0, 1.0))
    _, none = started(job.folder, ())
    kept = [name for name in both if name.startswith("further_layers.0.")]
    assert {metric.partition(".")[0] for metric in both.keys() - none.keys()} == {"further_layers"}
    assert none.keys() == there.weights.keys()
    (trained,) = ranks(1, "tensors", job=job, resume_from=checkpoint.resolve(job.folder))
    for name in (*none, *kept):
        assert (both[name] == trained[f"model.{name}"]).all(), name
    changed = "further_layers.0.attention.query.weight"
    assert (both[changed] != drawn[changed].numpy()).any()


def test_the_sizes_of_the_model_are_taken_from_there(make_continued, earlier, make_run):
    there = checkpoint.describe(checkpoint.resolve(earlier))[0]
    assert prepare(make_continued()).model == there
    named = make_run("unused").model
    assert prepare(make_continued(model=named)).model == there


def test_a_checkpoint_of_another_model_is_refused(make_continued, make_run):
    other = make_run("unused", model={"layers": 3}).model
    with pytest.raises(ConfigError, match=r"another model \(layers: 2 there, 3 here\).*\[model\]"):
        prepare(make_continued(model=other))


def test_sequences_beyond_the_positions_of_the_checkpoint_are_refused(make_continued):
    with pytest.raises(
        ConfigError, match=r"sequence_length \(64 tokens\) is beyond the model's 48"
    ):
        longer = {"sequence_length": 64, "global_batch": 8, "micro_batch": 2}
        prepare(Pretraining.model_validate(dict(make_continued()) | {"batches": longer}))


@pytest.mark.slow
def test_tokens_of_another_tokenizer_are_refused(make_continued, make_tokens, tmp_path):
    other = make_tokens(tmp_path / "other", entries=300)
    run = make_continued().model_copy(update={"tokens": other})
    with pytest.raises(DataError, match="tokenizer of continue_from"):
        pretrain(run)
    assert not Path(run.output).exists()


def test_a_path_without_a_checkpoint_is_refused(make_continued, tmp_path):
    with pytest.raises(DataError, match="no valid checkpoint there"):
        prepare(make_continued(path=str(tmp_path)))


def test_a_run_file_names_a_model_or_a_run_to_continue_from():
    run = {
        "stage": "pretrain",
        "tokens": "tokens",
        "output": "run",
        "batches": {"sequence_length": 64, "global_batch": 8, "micro_batch": 2},
        "training": {"steps": 100},
    }
    with pytest.raises(ConfigError, match=r"\[model\] is missing"):
        build(Pretraining, run, "run.toml")
    assert build(Pretraining, run | {"continue_from": "other"}, "run.toml").model is None


@pytest.mark.parametrize(("lr", "said"), [(0.0029, False), (0.0031, True), (0.02, True)])
def test_a_rate_far_above_the_earlier_peak_is_logged(earlier, caplog, lr, said):
    with caplog.at_level(logging.WARNING):
        warn_of_high_rate(checkpoint.resolve(earlier), lr)
    assert ("of the earlier run's 0.01" in caplog.text) == said
    assert ("0.001 to 0.003" in caplog.text) == said


def test_a_checkpoint_without_a_run_file_says_nothing_of_its_rate(earlier, caplog, tmp_path):
    alone = shutil.copytree(checkpoint.resolve(earlier), tmp_path / "alone")
    warn_of_high_rate(str(alone), 1.0)
    run = shutil.copytree(earlier, tmp_path / "run")
    (run / "run.toml").unlink()
    warn_of_high_rate(checkpoint.resolve(str(run)), 1.0)
    assert caplog.text == ""
