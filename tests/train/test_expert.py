"""Experts that are divided over workers, against one process that has all of them."""

import dataclasses
import signal

import numpy as np
import pytest
from support.attempts import read_whole
from support.compare_runs import assert_close, assert_same, read_losses
from support.remembered import remember
from support.waiting import wait_until

from trainrig.errors import ConfigError
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.pretrain import prepare, pretrain
from trainrig.train.run.run_folder import RunFolder

STEPS = 10
MIXTURES = {
    "softmax": {"experts": 4, "active": 2, "shared_experts": 1, "dense_layers": 1},
    "sigmoid": {"experts": 4, "active": 2, "scores": "sigmoid", "balance_bias": True},
    "capacity": {"experts": 4, "active": 2, "capacity": 0.8, "router_z_loss": 0.01},
}


MIXTURE = {"kind": "MixtureOfExperts", "experts": 4, "active": 2}
EXPERT = {"kind": "FSDP", "expert": {"ranks": 2}}


@pytest.fixture(scope="module")
def trained(make_job, ranks, tmp_path_factory):
    """Return `trained(world, expert, mixture, layout)`: a run of 10 steps.

    It returns the job, and all contents of its last checkpoint.
    """

    @remember
    def train(world, expert=None, mixture="softmax", layout=None):
        parallel = {"kind": "FSDP"} | (layout or {})
        if expert is not None:
            parallel["expert"] = {"ranks": expert}
        job = make_job(
            tmp_path_factory.mktemp("run"),
            world,
            training={
                "steps": STEPS,
                "parallel": parallel,
                "deterministic": layout is None,
                "held_out": {"rows": 7, "every": 5},
                "checkpoints": {"every": 2},
            },
            model={"feedforward": {"kind": "MixtureOfExperts"} | MIXTURES[mixture]},
            batches={"micro_batch": 4, "global_batch": 16},
        )
        ranks(world, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
        return job, read_whole(ranks, job)

    return train


def mark_soak(*values):
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "expert", "mixture"),
    [
        (2, 2, "softmax"),
        (4, 2, "capacity"),
        (4, 4, "sigmoid"),
        *(mark_soak(2, 2, mixture) for mixture in ("sigmoid", "capacity")),
        *(mark_soak(4, 2, mixture) for mixture in ("softmax", "sigmoid")),
        *(mark_soak(4, 4, mixture) for mixture in ("softmax", "capacity")),
    ],
)
def test_workers_that_divide_experts_train_as_one_process_does(world, expert, mixture, trained):
    """Use expert 2, expert 2 x FSDP 2, and expert 4; 3 of 4 workers have one of 7 held-out rows."""
    assert_close(trained(world, expert, mixture), trained(1, None, mixture))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [mark_soak({"kind": "HSDP", "replicas": 2}), {"kind": "DDP"}, mark_soak({"kind": "FSDP"})],
)
def test_copies_of_the_model_divide_experts_too(layout, trained):
    """The same holds for FSDP whose gradients are summed as they arrive."""
    assert_close(trained(4, 2, "softmax", layout), trained(1))


@pytest.mark.slow
@pytest.mark.parametrize("mixture", ["capacity", mark_soak("softmax"), mark_soak("sigmoid")])
def test_the_number_of_data_workers_does_not_change_a_bit(mixture, trained):
    assert_same(trained(2, 2, mixture), trained(4, 2, mixture))


def continue_run(job, world, group, until=STEPS):
    """Run one attempt of `world` ranks from the current state.

    Rank 0 gets a stop request in the step after `until`.
    """
    found, damages = find_newest_valid(RunFolder(job.folder))
    assert not damages
    begun = found.step if found else 0
    # The time to stop is so short that ranks ask each other before each micro-batch.
    faults = job.training.faults.model_copy(update={"grace": 1e-6})
    job = dataclasses.replace(job, training=job.training.model_copy(update={"faults": faults}))
    asked = (until - begun) * (4 * job.training.parallel.replica // world) + 1
    reached = group(
        world,
        "train",
        job=job,
        attempt=RunFolder(job.folder).take_attempt(begun),
        resume_from=found.path if found else None,
        told=(0, "train", asked),
    )
    assert reached == [until] * world


CHANGES = {
    "recompute": {"recompute": {"kind": "Full"}},
    "averages": {"averaging": {"horizons": (4,)}},
    "frozen experts": {"groups": ({"match": "*.experts.*", "freeze": True},)},
    "lion": {"optimizer": {"kind": "Lion", "lr": 0.001}},
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_other_settings_go_with_divided_experts(change, ranks, make_job, tmp_path):
    """The weights equal those without divided experts."""
    found = {}
    reshard = {"reshard": "layer" if change == "recompute" else "step"}
    for world, parallel in ((1, {"kind": "FSDP"}), (2, EXPERT)):
        job = make_job(
            tmp_path / f"{world}",
            world,
            model={"feedforward": MIXTURE},
            training={"steps": 4} | CHANGES[change] | {"parallel": parallel | reshard},
        )
        found[world] = ranks(world, "steps", job=job, count=4)[0]["losses"]
    np.testing.assert_allclose(found[2], found[1], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_data_workers_may_come_and_go(trained, ranks, tmp_path):
    """One replica is used, then two, then one again."""
    job = dataclasses.replace(trained(2, 2, "capacity")[0], folder=str(tmp_path))
    continue_run(job, 2, ranks, until=3)
    continue_run(job, 4, ranks, until=7)
    continue_run(job, 2, ranks)
    assert_same((job, read_whole(ranks, job)), trained(2, 2, "capacity"))


@pytest.mark.chaos
def test_data_workers_may_be_killed(trained, mortal_ranks, ranks, tmp_path):
    """Ranks hang in turn on the data of a step until they are killed, and the run continues."""
    job = dataclasses.replace(trained(2, 2, "capacity")[0], folder=str(tmp_path))
    for world, target, step in ((4, 3, 3), (2, 0, 5), (4, 1, 9)):
        found, _ = find_newest_valid(RunFolder(job.folder))
        processes = mortal_ranks.start(
            world,
            "train",
            job=job,
            attempt=RunFolder(job.folder).take_attempt(found.step if found else 0),
            resume_from=found.path if found else None,
            fault=(target, "stall", step),
        )
        saved = step // 2 * 2  # saved by a thread, which a busy machine may delay
        wait_until(
            lambda step=step, saved=saved: (
                len(read_losses(job)) == step
                and (found := find_newest_valid(RunFolder(job.folder))[0])
                and found.step == saved
            ),
            process=processes[target],
        )
        processes[target].send_signal(signal.SIGKILL)
        mortal_ranks.end()
        assert find_newest_valid(RunFolder(job.folder))[0].step == saved
    continue_run(job, 2, mortal_ranks)
    assert_same((job, read_whole(ranks, job)), trained(2, 2, "capacity"))


@pytest.mark.ray
@pytest.mark.slow
def test_workers_of_ray_divide_experts(local_ray, ranks, make_run, tmp_path):
    """Two workers of Ray give the bits of two ranks without Ray."""
    run = make_run(
        tmp_path / "run",
        2,
        model={"feedforward": MIXTURE},
        training={"steps": 4, "parallel": EXPERT},
    )
    counts = pretrain(run).counts
    assert (counts["steps"], counts["restarts"]) == (4, 0)
    plainly = tmp_path / "ranks"
    plainly.mkdir()
    job = dataclasses.replace(prepare(run), folder=str(plainly))
    ranks(2, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    by_ray = dataclasses.replace(job, folder=run.output)
    assert_same((by_ray, read_whole(ranks, by_ray)), (job, read_whole(ranks, job)))


LAYOUTS = {
    "one process": (1, {}),
    "FSDP 2": (2, {}),
    "expert 2": (2, {"expert": {"ranks": 2}}),
    "expert 2 x FSDP 2": (4, {"expert": {"ranks": 2}}),
    "expert 4": (4, {"expert": {"ranks": 4}}),
    "expert 2 x DDP 2": (4, {"kind": "DDP", "expert": {"ranks": 2}}),
}


def lay_out(job, layout):
    """Return `job` in that layout, and its number of workers."""
    world, parallel = LAYOUTS[layout]
    settings = job.training.model_dump() | {"parallel": {"kind": "FSDP"} | parallel}
    settings["deterministic"] = settings["parallel"]["kind"] == "FSDP"
    training = type(job.training).model_validate(settings)
    return dataclasses.replace(job, training=training), world


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrote", ["expert 2 x FSDP 2", *(mark_soak(name) for name in LAYOUTS if "x FSDP" not in name)]
)
def test_a_checkpoint_is_read_into_any_other_layout(wrote, trained, ranks, tmp_path):
    """A checkpoint holds full tensors, also the optimizer's, whichever ranks have parts of them."""
    job, world = lay_out(trained(1)[0], wrote)
    job = dataclasses.replace(job, folder=str(tmp_path))
    continue_run(job, world, ranks, until=2)
    found, _ = find_newest_valid(RunFolder(job.folder))
    read = {}
    for layout in LAYOUTS:
        another, size = lay_out(job, layout)
        read[layout] = ranks(size, "tensors", job=another, resume_from=found.path)
    (expected,) = read["one process"]
    assert any(name.startswith("optimizer.") and "experts" in name for name in expected)
    for layout, wholes in read.items():
        for whole in wholes:
            assert whole.keys() == expected.keys()
            for name, value in whole.items():
                np.testing.assert_array_equal(value, expected[name], err_msg=f"{layout}: {name}")


@pytest.mark.slow
def test_a_run_continues_in_another_layout(trained, ranks, tmp_path):
    """One process, then experts over 2 and over 4, then FSDP equal one process to the end."""
    straight = trained(1)
    assert any("experts" in name for name in straight[1])
    for layout, stop in (
        ("one process", 2),
        ("expert 2", 4),
        ("expert 4", 6),
        ("expert 2 x FSDP 2", 8),
        ("FSDP 2", STEPS),
    ):
        job, world = lay_out(dataclasses.replace(straight[0], folder=str(tmp_path)), layout)
        continue_run(job, world, ranks, until=stop)
    assert_close((job, read_whole(ranks, job)), straight)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {}}, "model has no experts"),
        (
            {"training": {"parallel": {"kind": "FSDP", "expert": {"ranks": 3}}}},
            r"ranks \(3\).*divide the 4 experts.*2, 4",
        ),
        (
            {"batches": {"micro_batch": 1}},
            r"divide the 1 rows.*set batches.micro_batch.*2",
        ),
        ({"training": {"compile": {}}}, r"cannot be compiled.*remove \[training.compile\]"),
        (
            {"training": {"parallel": EXPERT | {"context": {"kind": "Gathered", "ranks": 2}}}},
            r"rows, but parallel.context cuts",
        ),
        ({"training": {"recompute": {"kind": "Selective"}}}, "set recompute.kind = 'Full'"),
        ({"objective": {"kind": "PrefixLM"}}, "objective PrefixLM does not support"),
    ],
)
def test_experts_that_cannot_be_divided_are_rejected_by_the_run_file(
    changes, said, make_run, tmp_path
):
    model = changes.pop("model", {"feedforward": MIXTURE})
    training = {"parallel": EXPERT} | changes.pop("training", {})
    with pytest.raises(ValueError, match=said):
        make_run(tmp_path, 2, training=training, model=model, **changes)


def test_optimizers_that_gather_whole_tensors_are_not_for_experts(make_run, tmp_path):
    training = {"parallel": EXPERT, "optimizer": {"kind": "Muon"}}
    run = make_run(tmp_path, 2, training=training, model={"feedforward": MIXTURE})
    model = run.model.for_tokenizer(320)
    with pytest.raises(ConfigError, match=r"Muon gathers whole.*match = '\*.experts.\*'"):
        run.training.check_parameters(model)
    training["groups"] = ({"match": "*.experts.*", "optimizer": {"kind": "AdamW"}},)
    run = make_run(tmp_path, 2, training=training, model={"feedforward": MIXTURE})
    run.training.check_parameters(model)


@pytest.mark.parametrize(("workers", "said"), [(1, "use 2"), (3, "use 2 or 4")])
def test_workers_that_are_no_whole_groups_are_refused(workers, said, make_run, tmp_path):
    training = {"parallel": EXPERT}
    run = make_run(tmp_path, workers, training=training, model={"feedforward": MIXTURE})
    with pytest.raises(ConfigError, match=f"does not divide {workers} workers.*{said}"):
        run.training.check_workers(workers)
