"""Runs with the optimizer's state in host memory: the bits of runs without, and resuming.

Layers that save activations in host memory are included.
"""

import dataclasses
import pickle

import pytest
import torch
from support.attempts import continue_run

from trainrig.parallel import activation_offload, numerics
from trainrig.parallel.mesh import find_local_device
from trainrig.parallel.recompute import Offload
from trainrig.parallel.sharding.fsdp import find_local_slice
from trainrig.tokens.batches import read_local_batch
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.state import build_fresh_state
from trainrig.train.step import Stepper

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
    # Its first losses overflow: those steps are skipped, and the optimizer's state stays.
    "float16": {
        "precision": {"compute": "float16", "loss_scale_exponent": 24, "loss_scale_interval": 3}
    },
}


@pytest.fixture(scope="module")
def straight_run(ranks, make_job, tmp_path_factory):
    """Return `straight_run("AdamW")`: a job of one rank with its state on the device."""
    made = {}

    def run(name):
        if name not in made:
            made[name] = make_run(make_job, tmp_path_factory.mktemp("straight"), name)
            continue_run(made[name], 1, ranks)
        return made[name]

    return run


def make_run(make_job, folder, name):
    training = {"steps": STEPS, "checkpoints": {"every": 4, "keep": 10}, **RUNS[name]}
    return make_job(folder, training=training)


def make_hosted(job, hosted=True):
    training = job.training.model_copy(update={"offload": Offload(optimizer=hosted)})
    return dataclasses.replace(job, training=training)


def kill(job, world, revived_ranks):
    """Run an attempt whose last rank is killed in the step before the last."""
    taken = RunFolder(job.folder).take_attempt(0)
    fault = (world - 1, "die", STEPS - 2)
    for process in revived_ranks.start(world, "train", job=job, attempt=taken, fault=fault):
        try:
            fine, _ = pickle.load(process.stdout)
        except EOFError:
            process.wait()
            continue
        assert not fine  # the other rank was killed


def read_state(ranks, job):
    """Return weights and optimizer state of the newest checkpoint, as bytes by name."""
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
    job = make_hosted(make_run(make_job, tmp_path, name))
    continue_run(job, world, ranks)
    assert read_state(ranks, job) == read_state(ranks, straight_run(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AdamW", "groups"])
@pytest.mark.parametrize("hosted_first", [True, False])
def test_a_killed_run_resumes_with_its_optimizer_state_moved(
    name, hosted_first, ranks, revived_ranks, make_job, straight_run, tmp_path
):
    job = make_run(make_job, tmp_path, name)
    kill(make_hosted(job, hosted_first), 2, revived_ranks)
    continue_run(make_hosted(job, not hosted_first), 3, ranks)
    assert read_state(ranks, job) == read_state(ranks, straight_run(name))


LAYOUTS = {
    "columns": {"tensor": {"ranks": 2}},  # ranks gather whole rows for a checkpoint
    "stages": {"pipeline": {"ranks": 2}},
    "layer by layer": {"reshard": "layer", "reduce": "micro_batch"},
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_hosted_state_changes_no_bit_in_any_layout_and_runs_can_switch(
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
            continue_run(make_hosted(part, hosted), 2, ranks)
        newest, _ = find_newest_valid(RunFolder(job.folder))
        found = ranks(2, "tensors", job=job, resume_from=newest.path)
        states[name] = [
            {n: value.tobytes() for n, value in state.items() if n != "counters"} for state in found
        ]
    assert states["never"][0] and states["early"] == states["late"] == states["never"]


def test_a_checkpoint_is_read_into_either_memory(ranks, make_job, straight_run):
    job = straight_run("AdamW")
    assert read_state(ranks, make_hosted(job)) == read_state(ranks, job)


IN_PLACES = {"parallel": {"kind": "FSDP", "tensor": {"ranks": 2, "sequence_parallel": True}}}
LAYER = {"parallel": {"kind": "FSDP", "reshard": "layer"}}
BFLOAT16 = {"precision": {"compute": "bfloat16"}}
EXPERTS = {"kind": "MixtureOfExperts", "experts": 4, "active": 2}


@pytest.mark.parametrize(
    ("training", "model"),
    [
        ({}, {}),
        (BFLOAT16, {}),
        (BFLOAT16 | LAYER | {"recompute": {"kind": "Full"}}, {}),
        (
            BFLOAT16 | LAYER,
            {"feedforward": {"kind": "MixtureOfExperts", "experts": 4, "active": 2}},
        ),
    ],
    ids=["float32", "bfloat16", "layer by layer, again", "experts"],
)
def test_offloaded_activations_change_no_bit_of_a_step(
    training, model, alone, make_job, tmp_path, monkeypatch
):
    """Treat the CPU as a device with its own memory; FSDP frees weights that layers have saved."""
    monkeypatch.setattr(activation_offload, "APART", ("cpu",))
    monkeypatch.setattr(activation_offload, "LEAST_BYTES", 0)
    send = activation_offload._send
    sent = []
    found = []
    monkeypatch.setattr(
        activation_offload, "_send", lambda here: sent.append(here.nbytes) or send(here)
    )
    for hosted in (False, True):
        told = training | {"offload": {"activations": hosted}}
        job = make_job(tmp_path, training=told, model=model)
        numerics.settle(job.training.threads, job.training.deterministic)
        state = build_fresh_state(job, find_local_device())
        batches = job.make_batches()
        stepper = Stepper(job, batches.sources, state, lambda: False)
        figures = [stepper.take(read_local_batch(batches, 0, 1, step)) for step in range(2)]
        tensors = {
            name: find_local_slice(tensor)[0] for name, tensor in state.list_tensors().items()
        }
        assert bool(sent) == hosted
        found.append(([(step.loss.total, step.grad_norm) for step in figures], tensors))
    (steps, tensors), (steps_hosted, tensors_hosted) = found
    assert steps == steps_hosted and tensors.keys() == tensors_hosted.keys()
    assert all(torch.equal(tensors[name], tensors_hosted[name]) for name in tensors)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recompute": {"kind": "Selective"}}, "'Selective' already decides"),
        ({"recompute": {"kind": "Budget", "gib": 1.0}}, "'Budget' already decides"),
        (
            IN_PLACES,
            r"save parts of activations.*recompute.kind = 'Full'",
        ),
        (IN_PLACES | {"recompute": {"kind": "Full", "every": 2}}, "set .* 'Full' for all layers"),
    ],
)
def test_activations_that_would_not_be_moved_are_refused(changes, said, make_run, tmp_path):
    with pytest.raises(ValueError, match=said):
        make_run(tmp_path, 2, training={"offload": {"activations": True}, **changes})
    make_run(tmp_path, 2, training={"offload": {"optimizer": True}, **changes})
