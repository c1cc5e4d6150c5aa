"""Averages of the weights: their values, no change of training, and resuming."""

import json

import pytest
import torch
from pydantic import ValidationError
from typer.testing import CliRunner

from trainrig.cli import app
from trainrig.train.averaging import Averaging, WeightAverages
from trainrig.train.checkpoint import find_newest_valid, open_model
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

STEPS = 8
HORIZON = 4
TRAINING = {
    "steps": STEPS,
    "held_out": {"every": 4, "rows": 4},
    "checkpoints": {"every": 2, "keep": 100},
    "schedule": {"kind": "Constant", "warmup": 0},
}
KEPT = TRAINING | {"averaging": {"horizons": (HORIZON, 100)}}


def train(world, job, group, **arguments):
    newest = find_newest_valid(RunFolder(job.folder))[0]
    attempt = RunFolder(job.folder).take_attempt(newest.step if newest else 0)
    path = newest.path if newest else None
    group(world, "train", job=job, attempt=attempt, resume_from=path, **arguments)


@pytest.fixture(scope="module")
def kept(ranks, make_job, tmp_path_factory):
    job = make_job(tmp_path_factory.mktemp("kept"), training=KEPT)
    train(1, job, ranks)
    return job


def write_averages(job, out, *options):
    done = CliRunner().invoke(app, ["average", job.folder, str(out), *options, "--json"])
    assert done.exit_code == 0, done.output
    return {n: w.numpy().tobytes() for n, w in open_model(str(out)).weights.items()}


def test_an_average_is_the_mean_until_its_horizon_and_then_forgets():
    model = torch.nn.Linear(1, 1, bias=False)
    averages = WeightAverages(model, (2, 4))
    expected = {2: 0.0, 4: 0.0}
    for step, value in enumerate([1.0, 3.0, 5.0, 7.0, 20.0], 1):
        with torch.no_grad():
            model.weight.fill_(value)
        averages.update(step)
        for horizon in expected:
            expected[horizon] += (value - expected[horizon]) * max(1 / horizon, 1 / step)
    held = averages.list_tensors()
    assert held["average.4.weight"].item() == pytest.approx(expected[4]) == 4 + 16 / 4
    assert held["average.2.weight"].item() == pytest.approx(expected[2])
    with averages.swap_in(4):
        assert model.weight.item() == pytest.approx(8.0)
    assert model.weight.item() == 20.0


@pytest.mark.slow
def test_averages_change_no_bit_of_the_weights(kept, ranks, make_job, tmp_path):
    plain = make_job(tmp_path, training=TRAINING)
    train(1, plain, ranks)

    def weights(job):
        path = find_newest_valid(RunFolder(job.folder))[0].path
        return {n: w.numpy().tobytes() for n, w in open_model(path).weights.items()}

    assert weights(plain) == weights(kept)
    mine, other = (metrics.read_held_out_series(job.folder) for job in (kept, plain))
    assert [line["eval/loss"] for line in mine] == [line["eval/loss"] for line in other]


@pytest.mark.slow
def test_averages_have_the_same_bits_on_two_ranks_and_after_a_stop(kept, ranks, make_job, tmp_path):
    job = make_job(tmp_path / "run", training=KEPT)
    train(2, job, ranks, told=(0, "train", 9))
    train(1, job, ranks)
    assert len(RunFolder(job.folder).read_attempts()) == 2
    for horizon in ("4", "100"):
        mine = write_averages(job, tmp_path / f"mine-{horizon}", "--horizon", horizon)
        assert mine == write_averages(kept, tmp_path / f"kept-{horizon}", "--horizon", horizon)
    losses = [
        [line[f"averages/{HORIZON}/loss"] for line in metrics.read_held_out_series(run.folder)]
        for run in (job, kept)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 2
    assert losses[0][0] != metrics.read_held_out_series(kept.folder)[0]["eval/loss"]


def test_the_mean_of_the_last_checkpoints_is_their_mean(kept, tmp_path):
    out = tmp_path / "mean"
    write_averages(kept, out, "--last", "3")
    steps = [open_model(f"{kept.folder}/checkpoints/step_{step:08d}").weights for step in (4, 6, 8)]
    for name, mean in open_model(str(out)).weights.items():
        expected = sum(weights[name].double() for weights in steps) / 3
        assert torch.equal(mean, expected.float())


def test_unsupported_averages_are_rejected(kept, tmp_path):
    def said(*options):
        done = CliRunner().invoke(app, ["average", kept.folder, *options])
        assert done.exit_code
        return str(done.exception)

    out = str(tmp_path / "out")
    assert "cannot be averaged; use a smaller --last" in said(out, "--last", "9")
    assert "horizons = [7]" in said(out, "--horizon", "7")
    assert "one of --last and --horizon" in said(out)
    assert "not empty" in said(kept.folder, "--last", "2")
    for horizons in ((1,), (5, 5)):
        with pytest.raises(ValidationError, match="are not different numbers"):
            Averaging(horizons=horizons)
    assert json.dumps(Averaging(horizons=(2, 9)).model_dump(mode="json"))
