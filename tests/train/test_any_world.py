"""Deterministic mode: the same bits on any number of ranks, however often that changes."""

import dataclasses
import itertools
import random
import signal

import numpy as np
import pytest
from support.attempts import continue_run
from support.waiting import wait_until

from trainrig.errors import ConfigError
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.pretrain import prepare
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import read_trained_samples

STEPS = 20  # steps of the undisturbed runs
EXACT = ("train/loss", "train/grad_norm", "train/lr", "train/tokens")
HELD_OUT = ("eval/loss", "eval/books/loss", "eval/web/loss")


def read_exact_metrics(job):
    return [
        (line["step"], *(line[name] for name in EXACT)) for line in metrics.read_series(job.folder)
    ]


def read_held_out(job):
    lines = metrics.read_held_out_series(job.folder)
    return [(line["step"], *(line[name] for name in HELD_OUT)) for line in lines]


def find_newest(job):
    found, damages = find_newest_valid(RunFolder(job.folder))
    assert not damages
    return found


@pytest.fixture
def contents(ranks):
    """Return everything in the newest checkpoint of a run, as bytes by name."""

    def read(job):
        (whole,) = ranks(1, "tensors", job=job, resume_from=find_newest(job).path)
        return {
            name: value.tobytes() if isinstance(value, np.ndarray) else value
            for name, value in whole.items()
        }

    return read


@pytest.fixture
def same(straight, contents):
    """Return a check that a run is bit-identical to the undisturbed one of a single rank."""

    def check(job):
        alone = straight(1)
        assert read_exact_metrics(job) == read_exact_metrics(alone)
        assert read_held_out(job) == read_held_out(alone) != []
        assert contents(job) == contents(alone)
        assert read_trained_samples(RunFolder(job.folder)) == read_trained_samples(
            RunFolder(alone.folder)
        )

    return check


def count_heartbeats(world, steps):
    """Return the first heartbeat in the step after `steps`, at 4 micro-batches a step."""
    return steps * -(-4 // world) + 1


def shorten_grace(job):
    """Return `job` with almost no time to stop."""
    faults = job.training.faults.model_copy(update={"grace": 1e-6})
    return dataclasses.replace(job, training=job.training.model_copy(update={"faults": faults}))


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_number_of_ranks_does_not_change_a_bit(world, straight, same):
    # Three ranks get 1, 1 and 2 of the 4 micro-batches of a step: an uneven assignment.
    same(straight(world))


@pytest.mark.slow
def test_ranks_may_come_and_go(straight, ranks, same, tmp_path):
    """Worlds of 4, 3, 1, 2 and 4 ranks each stop within a step, by a request to one rank.

    The time to stop is so short that ranks ask each other before each micro-batch.
    """
    job = shorten_grace(dataclasses.replace(straight(1), folder=str(tmp_path)))
    dice = random.Random(0)
    for world in (4, 3, 1, 2):
        before = find_newest(job).step if find_newest(job) else 0
        told = (
            dice.randrange(world),
            "train",
            count_heartbeats(world, 3) + dice.randrange(count_heartbeats(world, 1) - 1),
        )
        stopped = continue_run(job, world, ranks, told=told)
        assert stopped == [before + 3] * world
        assert find_newest(job).step == stopped[0]
    assert continue_run(job, 4, ranks) == [STEPS] * 4
    same(job)


@pytest.mark.chaos
def test_ranks_may_come_and_go_and_be_killed(straight, mortal_ranks, same, tmp_path):
    job = dataclasses.replace(straight(1), folder=str(tmp_path))
    for world, victim, step in ((3, 1, 6), (2, 0, 13), (1, 0, 18)):
        # The rank hangs on that step's data until it is killed, one or two steps after a
        # checkpoint.
        found = find_newest(job)
        processes = mortal_ranks.start(
            world,
            "train",
            job=job,
            attempt=RunFolder(job.folder).take_attempt(found.step if found else 0),
            resume_from=found.path if found else None,
            fault=(victim, "stall", step),
        )
        saved = step // 4 * 4  # saved by a thread, which a busy machine may delay
        wait_until(
            lambda step=step, saved=saved: (
                len(read_exact_metrics(job)) == step
                and (found := find_newest(job))
                and found.step == saved
            ),
            process=processes[victim],
        )
        processes[victim].send_signal(signal.SIGKILL)
        mortal_ranks.end()
        assert find_newest(job).step == saved
    assert continue_run(job, 2, mortal_ranks) == [STEPS] * 2
    same(job)


# --- further settings that must not change the bits


@pytest.mark.slow
def test_neither_when_parameters_are_gathered_nor_who_has_none_changes_a_bit(
    ranks, make_job, tmp_path
):
    few = {"global_batch": 6, "micro_batch": 2}  # 3 micro-batches: a fourth rank has none
    found = {}
    for reshard, world in itertools.product(("step", "layer"), (1, 4)):
        training = {"steps": 6, "parallel": {"kind": "FSDP", "reshard": reshard}}
        job = make_job(tmp_path / f"{reshard}-{world}", training=training, batches=few)
        found[reshard, world] = ranks(world, "steps", job=job, count=6)[0]
    assert len({(answer["digest"], *answer["losses"]) for answer in found.values()}) == 1


@pytest.mark.slow
def test_other_virtual_workers_add_in_another_order(ranks, make_job, tmp_path):
    """So results depend on this setting; one worker for three differs from one for one."""
    found = {}
    for virtual, world in ((1, 1), (3, 1), (3, 2), (3, 3)):
        job = make_job(tmp_path / f"{virtual}-{world}", training={"virtual_workers": virtual})
        found[virtual, world] = ranks(world, "steps", job=job, count=6)[0]["digest"]
    assert found[3, 1] == found[3, 2] == found[3, 3] != found[1, 1]


def test_more_workers_than_virtual_ones_are_refused(make_run, tmp_path):
    run = make_run(tmp_path, training={"virtual_workers": 3})
    prepare(run.model_copy(update={"workers": (1, 3)}))
    with pytest.raises(ConfigError, match=r"virtual_workers \(3\).*below the 4 workers"):
        prepare(run.model_copy(update={"workers": (1, 4)}))


# --- fast mode, and other layouts

LAYOUTS = {
    "FSDP": (2, {"kind": "FSDP"}),
    "FSDP, layer by layer": (3, {"kind": "FSDP", "reshard": "layer"}),
    "HSDP": (4, {"kind": "HSDP", "replicas": 2}),
    "DDP": (2, {"kind": "DDP"}),
}
ALIKE = ("FSDP, layer by layer", "DDP")  # to FSDP, and to the copies of HSDP


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.soak) if name in ALIKE else name for name in LAYOUTS],
)
def test_every_layout_trains_as_one_process_does(name, ranks, make_job, tmp_path):
    """Compare over 50 steps, within the rounding of float32."""
    world, layout = LAYOUTS[name]
    one = make_job(tmp_path / "one", training={"steps": 50})
    several = make_job(
        tmp_path / "several",
        workers=world,
        training={"steps": 50, "deterministic": False, "parallel": layout},
    )
    (alone,) = ranks(1, "steps", job=one, count=50)
    found = ranks(world, "steps", job=several, count=50)
    assert all(answer == found[0] for answer in found)
    assert found[0]["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert found[0]["losses"][-1] < 0.7 * found[0]["losses"][0]


@pytest.mark.slow
def test_a_fast_run_continues_on_other_ranks_within_rounding(ranks, make_job, straight, tmp_path):
    training = {"steps": STEPS, "deterministic": False, "checkpoints": {"every": 4, "keep": 100}}
    job = make_job(tmp_path, training=training)
    for world in (4, 3, 1, 2):
        continue_run(job, world, ranks, told=(0, "train", count_heartbeats(world, 3)))
    assert continue_run(job, 4, ranks) == [STEPS] * 4
    alone = straight(1)
    assert [line[1] for line in read_exact_metrics(job)] == pytest.approx(
        [line[1] for line in read_exact_metrics(alone)], rel=1e-5
    )
    assert read_trained_samples(RunFolder(job.folder)) == read_trained_samples(
        RunFolder(alone.folder)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["HSDP", "DDP"])
def test_a_run_continues_in_another_layout(name, ranks, make_job, tmp_path):
    world, layout = LAYOUTS[name]
    training = {"steps": 8, "deterministic": False, "checkpoints": {"every": 4}}
    sliced = make_job(tmp_path, training=training)
    other = dataclasses.replace(
        sliced,
        training=make_job(tmp_path, world, training=training | {"parallel": layout}).training,
    )
    (straight,) = ranks(1, "steps", job=sliced, count=8)
    continue_run(other, world, ranks, told=(0, "train", count_heartbeats(world, 4)))
    continue_run(sliced, 2, ranks)
    losses = [line[1] for line in read_exact_metrics(sliced)]
    assert losses == pytest.approx(straight["losses"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "layout"),
    [
        (4, {"kind": "HSDP", "replicas": 2}),
        (3, {"kind": "DDP"}),
        (3, {"kind": "FSDP", "reshard": "layer", "reduce": "micro_batch"}),
        (4, {"kind": "HSDP", "replicas": 2, "reshard": "layer", "reduce": "micro_batch"}),
    ],
)
def test_no_layout_changes_a_bit(world, layout, ranks, make_job, tmp_path):
    found = {}
    for ranks_of, laid_out in ((1, {"kind": "FSDP"}), (world, layout)):
        training = {"steps": 6, "parallel": laid_out}
        job = make_job(tmp_path / str(ranks_of), ranks_of, training=training)
        found[ranks_of] = ranks(ranks_of, "steps", job=job, count=6)
    assert all(answer == found[1][0] for answer in found[world])


@pytest.mark.parametrize("layout", [{"kind": "DDP"}, {"kind": "HSDP", "replicas": 2}])
def test_a_layout_that_cannot_be_deterministic_is_refused_in_one_line(layout, make_run, tmp_path):
    shared = layout | {"context": {"kind": "Gathered", "ranks": 2}}
    with pytest.raises(ValueError, match=r"parallel\.context.*set deterministic ="):
        make_run(tmp_path, training={"parallel": shared})
    make_run(tmp_path, training={"parallel": shared, "deterministic": False})
    make_run(tmp_path, training={"parallel": layout})


def test_replicas_that_do_not_divide_the_workers_are_refused(make_run, tmp_path):
    layout = {"kind": "HSDP", "replicas": 2}
    run = make_run(tmp_path, training={"parallel": layout, "deterministic": False})
    run.training.check_workers(4)
    with pytest.raises(ConfigError, match=r"replicas \(2\) does not divide 3 workers; .* 1, 3"):
        prepare(run.model_copy(update={"workers": (2, 4)}))
