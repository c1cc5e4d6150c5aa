"""Optimizers, groups and precisions in whole runs: any number of ranks, a kill and a resize."""

import pickle

import pytest
from support.remembered import remember

from trainrig.errors import ConfigError
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.run.run_folder import RunFolder

STEPS = 8
TWO = (
    {"match": "embedding.*", "optimizer": {"kind": "Lion", "lr": 0.001, "state": "bfloat16"}},
    {"match": "layers.0.attention.*", "freeze": True},
    {"match": "*.feedforward.*", "rate": 0.5, "weight_decay": 0.2},
)
RUNS = {
    "SGD": {"optimizer": {"kind": "SGD", "lr": 0.1}},
    "Adam": {"optimizer": {"kind": "Adam", "lr": 0.01}},
    "rounded AdamW": {"optimizer": {"kind": "AdamW", "lr": 0.01, "state": "bfloat16"}},
    "Lion": {"optimizer": {"kind": "Lion", "lr": 0.002}},
    "Adafactor": {"optimizer": {"kind": "Adafactor", "lr": 0.05, "weight_decay": 0.1}},
    "Muon": {"optimizer": {"kind": "Muon", "lr": 0.02}},
    "groups": {"optimizer": {"kind": "Muon", "lr": 0.02}, "groups": TWO},
    "float16": {
        "precision": {"compute": "float16", "loss_scale_exponent": 24, "loss_scale_interval": 3}
    },
}

# Their state is AdamW's or a part of it, and every other test of a kill uses AdamW's.
PLAIN = ("SGD", "Adam", "Lion")


@pytest.fixture(scope="module")
def straight_run(ranks, make_job, tmp_path_factory):
    """Return `straight_run("Muon")`: its job, run by one rank without a stop."""

    @remember
    def run(name):
        job = build_job(make_job, tmp_path_factory.mktemp("straight"), name)
        ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
        return job

    return run


def build_job(make_job, folder, name):
    training = {"steps": STEPS, "checkpoints": {"every": 4, "keep": 10}, **RUNS[name]}
    model = {"mup": {"base_channels": 8}} if name == "groups" else {}
    return make_job(folder, training=training, model=model)


def read_whole_state(ranks, job):
    newest, _ = find_newest_valid(RunFolder(job.folder))
    (found,) = ranks(1, "tensors", job=job, resume_from=newest.path)
    return {name: value.tobytes() for name, value in found.items() if name != "counters"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak) if name in PLAIN else name for name in RUNS]
)
def test_a_kill_and_a_resize_change_no_bit_of_weights_and_optimizer_memory(
    name, ranks, revived_ranks, make_job, straight_run, tmp_path
):
    job = build_job(make_job, tmp_path, name)
    folder = RunFolder(job.folder)
    attempt = folder.take_attempt(0)
    for process in revived_ranks.start(
        2, "train", job=job, attempt=attempt, fault=(1, "die", STEPS - 2)
    ):
        try:
            fine, _ = pickle.load(process.stdout)
        except EOFError:
            process.wait()
            continue
        assert not fine  # the other rank was killed
    newest, _ = find_newest_valid(folder)  # None: the kill came before its save was complete
    step, path = (newest.step, newest.path) if newest else (0, None)
    attempt = folder.take_attempt(step)
    ranks(3, "train", job=job, attempt=attempt, resume_from=path)
    assert read_whole_state(ranks, job) == read_whole_state(ranks, straight_run(name))


def test_frozen_weights_stay_and_have_no_optimizer_state(ranks, straight_run):
    job = straight_run("groups")
    newest, _ = find_newest_valid(RunFolder(job.folder))
    (fresh,) = ranks(1, "tensors", job=job)
    (left,) = ranks(1, "tensors", job=job, resume_from=newest.path)
    frozen = {name for name in fresh if name.startswith("model.layers.0.attention.")}
    assert len(frozen) == 4
    for name in fresh.keys() - {"counters"}:
        if name.startswith("model."):
            assert (fresh[name].tobytes() == left[name].tobytes()) == (name in frozen)
    assert not [n for n in left if n.startswith("optimizer.") and "layers.0.attention." in n]


@pytest.mark.slow
def test_float16_backs_off_where_gradients_overflow_and_keeps_its_scale(straight_run):
    import json
    from pathlib import Path

    job = straight_run("float16")
    newest, _ = find_newest_valid(RunFolder(job.folder))
    factor, clean = json.loads((Path(newest.path) / "state.json").read_text())["loss_scale"]
    assert 1 < factor < 2**24 and 0 <= clean < 3
    assert json.loads((Path(newest.path) / "state.json").read_text())["skipped"] == []


@pytest.mark.slow
@pytest.mark.parametrize("compute", ["float16", "float8"])
def test_narrow_products_keep_the_losses_of_float32(compute, ranks, make_job, tmp_path):
    usual = {"optimizer": {"kind": "AdamW", "lr": 1e-3}, "schedule": {"kind": "Cosine"}}
    found = {}
    for precision in ("float32", compute):
        training = {"steps": 12, **usual, "precision": {"compute": precision}}
        job = make_job(tmp_path / precision, training=training)
        (answer,) = ranks(1, "steps", job=job, count=12)
        found[precision] = answer["losses"]
    rel = 2e-3 if compute == "float16" else 2e-2
    assert found[compute] == pytest.approx(found["float32"], rel=rel)
    assert found[compute] != found["float32"]


def test_groups_that_fit_no_parameter_are_refused_before_anything_starts(make_job, tmp_path):
    with pytest.raises(ConfigError, match="matches no parameter"):
        make_job(tmp_path, training={"groups": ({"match": "heads.*", "freeze": True},)})
