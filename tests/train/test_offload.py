"""Runs whose optimizer's memory is the host's: the bits of those without, and on from them."""

import dataclasses
import pickle

import pytest

from trainrig.parallel.offload import Offload
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.run.run_folder import RunFolder

STEPS = 8
ROUNDED = {"kind": "Lion", "lr": 0.001, "state": "bfloat16"}
RUNS = {
    "AdamW": {"optimizer": {"kind": "AdamW", "lr": 0.01}},
    "groups": {
        "optimizer": {"kind": "Muon", "lr": 0.02},
        "groups": (
            {"match": "embedding.*", "optimizer": ROUNDED},
            {"match": "layers.0.attention.*", "freeze": True},
            {"match": "*.feedforward.*", "rate": 0.5, "weight_decay": 0.2},
        ),
    },
    "Adafactor": {"optimizer": {"kind": "Adafactor", "lr": 0.05, "weight_decay": 0.1}},
    # Its first losses overflow: those steps are left out, and the optimizer's memory as it is.
    "float16": {
        "precision": {"compute": "float16", "loss_scale_exponent": 24, "loss_scale_interval": 3}
    },
}


@pytest.fixture(scope="module")
def straight_run(ranks, make_job, tmp_path_factory):
    """`straight_run("AdamW")`: a job with its memory on the device, done by one rank."""
    made = {}

    def run(name):
        if name not in made:
            made[name] = make_run(make_job, tmp_path_factory.mktemp("straight"), name)
            attempt(made[name], 1, ranks)
        return made[name]

    return run


def make_run(make_job, folder, name):
    training = {"steps": STEPS, "checkpoints": {"every": 4, "keep": 10}, **RUNS[name]}
    return make_job(folder, training=training)


def host(job, hosted=True):
    training = job.training.model_copy(update={"offload": Offload(optimizer=hosted)})
    return dataclasses.replace(job, training=training)


def attempt(job, world, group):
    """One of `world` ranks, from where the run is; True if it came to its end."""
    newest, damages = find_newest_valid(RunFolder(job.folder))
    assert not damages
    taken = RunFolder(job.folder).take_attempt(newest.step if newest else 0)
    return group(world, "train", job=job, attempt=taken, resume_from=newest and newest.path)


def kill(job, world, revived_ranks):
    """An attempt whose last rank is killed in the step before the last."""
    taken = RunFolder(job.folder).take_attempt(0)
    fault = (world - 1, "die", STEPS - 2)
    for process in revived_ranks.start(world, "train", job=job, attempt=taken, fault=fault):
        try:
            fine, _ = pickle.load(process.stdout)
        except EOFError:
            process.wait()
            continue
        assert not fine  # the other was killed


def read_state(ranks, job):
    """Weights and optimizer memory of the newest checkpoint, as bytes by name."""
    newest, _ = find_newest_valid(RunFolder(job.folder))
    (found,) = ranks(1, "tensors", job=job, resume_from=newest.path)
    assert newest.step == STEPS
    assert any(name.startswith("optimizer.state.") for name in found)
    return {name: value.tobytes() for name, value in found.items() if name != "counters"}


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_the_same_bits_with_its_memory_in_the_host(
    name, world, ranks, make_job, straight_run, tmp_path
):
    job = host(make_run(make_job, tmp_path, name))
    attempt(job, world, ranks)
    assert read_state(ranks, job) == read_state(ranks, straight_run(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AdamW", "groups"])
@pytest.mark.parametrize("hosted_first", [True, False])
def test_a_run_that_was_killed_goes_on_with_its_memory_elsewhere(
    name, hosted_first, ranks, revived_ranks, make_job, straight_run, tmp_path
):
    job = make_run(make_job, tmp_path, name)
    kill(host(job, hosted_first), 2, revived_ranks)
    attempt(host(job, not hosted_first), 3, ranks)
    assert read_state(ranks, job) == read_state(ranks, straight_run(name))


LAYOUTS = {
    "columns": {"tensor": {"ranks": 2}},  # whose whole rows ranks make together for a checkpoint
    "stages": {"pipeline": {"ranks": 2}},
    "layer by layer": {"reshard": "layer", "reduce": "micro_batch"},
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_every_layout_it_is_the_run_without_and_each_goes_on_from_the_other(
    layout, ranks, make_job, tmp_path
):
    parallel = {"kind": "FSDP", **LAYOUTS[layout]}
    states = {}
    for name, turns in {
        "never": (False, False),
        "early": (True, False),
        "late": (False, True),
    }.items():
        training = {"checkpoints": {"every": 4, "keep": 10}, "parallel": parallel}
        job = make_job(tmp_path / name, 2, training={"steps": STEPS, **training})
        half = dataclasses.replace(job, training=job.training.model_copy(update={"steps": 4}))
        for part, hosted in zip((half, job), turns, strict=True):
            attempt(host(part, hosted), 2, ranks)
        newest, _ = find_newest_valid(RunFolder(job.folder))
        found = ranks(2, "tensors", job=job, resume_from=newest.path)
        states[name] = [
            {n: value.tobytes() for n, value in each.items() if n != "counters"} for each in found
        ]
    assert states["never"][0] and states["early"] == states["late"] == states["never"]


def test_a_checkpoint_is_read_into_either_memory(ranks, make_job, straight_run):
    job = straight_run("AdamW")
    assert read_state(ranks, host(job)) == read_state(ranks, job)
