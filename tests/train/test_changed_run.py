"""A run file that is changed after its run has begun: steps and micro-batch."""

import dataclasses
from pathlib import Path

import pytest

from trainrig import manifest
from trainrig.errors import OutputTaken
from trainrig.processes import lease
from trainrig.train.elastic import trainer
from trainrig.train.pretrain import drive, prepare, pretrain
from trainrig.train.run import metrics
from trainrig.train.run_start import claim_run

STEPS = 12  # steps of the fixtures' runs
STOPPED = 6
CONSTANT = {"kind": "Constant", "warmup": 0}
DECAYS_LAST_QUARTER = {"kind": "WarmupStableDecay", "warmup": 2, "decay": 0.25}
COSINE = {"kind": "Cosine", "warmup": 2}


@pytest.fixture
def make(without_ray, make_run, tmp_path):
    """Return `make("run", CONSTANT, steps=16)`: a run file of that folder."""

    def run(folder, schedule, batches=None, **training):
        settings = {"schedule": schedule, "checkpoints": {"every": 3}, **training}
        return make_run(tmp_path / folder, training=settings, batches=batches or {})

    return run


@pytest.fixture
def begin(monkeypatch):
    """Return `begin(run)`: train its first STOPPED steps, after which its driver ends."""

    def train(run):
        short = run.training.model_copy(update={"steps": STOPPED})
        whole = trainer.run

        def cut_short(job, workers):
            whole(dataclasses.replace(job, training=short), workers)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(trainer, "run", cut_short)
            pretrain(run)

    return train


def read_losses(run):
    return [line["train/loss"] for line in metrics.read_series(run.output)]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [9, 16])
def test_a_run_of_constant_rate_may_end_at_another_step(make, begin, caplog, last_weights, steps):
    begin(make("run", CONSTANT))
    changed = make("run", CONSTANT, steps=steps)
    assert pretrain(changed).counts["steps"] == steps
    told = f"training.steps was {STEPS} and is {steps}; the steps made so far stay the same"
    assert told in caplog.text
    from_start = make("from-start", CONSTANT, steps=steps)
    pretrain(from_start)
    assert read_losses(changed) == read_losses(from_start)
    assert last_weights(prepare(changed)) == last_weights(prepare(from_start))
    assert pretrain(changed).counts["steps"] == steps  # made before
    with pytest.raises(OutputTaken, match=rf"is finished with training\.steps = {steps}, not 12;"):
        pretrain(make("run", CONSTANT))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "steps", "why"),
    [
        (COSINE, 16, r"In schedule Cosine, the rate of step 3, already made, was 0\.\d+ of the"),
        # The rate would have begun to fall at the fifth step.
        (DECAYS_LAST_QUARTER, 7, r"In schedule WarmupStableDecay, the rate of step 6, already"),
        (CONSTANT, 5, "and step 6 is saved; set 6 or more"),
    ],
)
def test_a_change_of_steps_that_would_have_changed_steps_made_is_refused_with_the_reason(
    make, begin, schedule, steps, why
):
    run = make("run", schedule)
    begin(run)
    claim = Path(run.output, "stage.json").read_bytes()
    with pytest.raises(OutputTaken, match=rf"training\.steps = {STEPS}, not {steps}.*{why}"):
        pretrain(make("run", schedule, steps=steps))
    assert Path(run.output, "stage.json").read_bytes() == claim


@pytest.mark.slow
def test_a_run_may_be_prolonged_before_its_rate_falls(make, begin):
    begin(make("run", DECAYS_LAST_QUARTER))
    assert pretrain(make("run", DECAYS_LAST_QUARTER, steps=16)).counts["steps"] == 16


@pytest.mark.slow
def test_another_micro_batch_trains_on_the_same_rows(make, begin, caplog):
    begin(make("run", CONSTANT))
    changed = make("run", CONSTANT, batches={"micro_batch": 4})
    pretrain(changed)
    assert "batches.micro_batch was 2 and is 4; gradients are added in another" in caplog.text
    straight = make("straight", CONSTANT)
    pretrain(straight)
    assert read_losses(changed)[:STOPPED] == read_losses(straight)[:STOPPED]
    assert read_losses(changed) == pytest.approx(read_losses(straight), rel=1e-5)


@pytest.mark.slow
def test_another_micro_batch_of_experts_that_balance_it_is_refused(make, begin, make_run, tmp_path):
    experts = {"kind": "MixtureOfExperts", "experts": 4, "active": 2}
    settings = {"model": {"feedforward": experts}, "training": {"checkpoints": {"every": 3}}}
    begin(make_run(tmp_path / "run", **settings))
    with pytest.raises(OutputTaken, match="rows share a micro-batch"):
        pretrain(make_run(tmp_path / "run", batches={"micro_batch": 4}, **settings))


def test_of_two_drivers_that_change_a_run_at_once_only_one_trains(make):
    run = make("run", CONSTANT)
    inputs = {"tokens": manifest.read_input(run.tokens, "tokenize").content}
    first = claim_run(run.output, run, run.training, inputs)
    second = make("run", CONSTANT, steps=STEPS + 4)
    claim_run(run.output, second, second.training, inputs)
    with pytest.raises(OutputTaken, match=r"another driver has just started .* training\.steps"):
        drive(first, run, prepare(run), run.workers)
    assert not lease.is_held(run.output)
    assert manifest.read_claim(run.output).config["training"]["steps"] == STEPS + 4
