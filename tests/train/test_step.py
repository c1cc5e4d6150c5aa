"""Steps that are not taken: after a stop request, and without a finite update."""

import dataclasses
import json
import math

import pytest
from support.attempts import continue_run

from trainrig import storage
from trainrig.train.checkpoint import find_newest_valid, open_model
from trainrig.train.loss_table import Loss
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import read_trained_samples
from trainrig.train.step import StepFigures

STEPS = 8
BATCH = 8  # sequences, in 4 micro-batches
EXACT = ("train/loss", "train/grad_norm", "train/lr", "train/tokens")


def read_exact_metrics(job):
    return [
        (line["step"], *(line[name] for name in EXACT)) for line in metrics.read_series(job.folder)
    ]


def find_newest(job):
    return find_newest_valid(RunFolder(job.folder))[0]


def read_weights(job):
    held = open_model(find_newest(job).path).weights
    return {name: value.numpy().tobytes() for name, value in held.items()}


def list_entries(job):
    return json.loads(storage.read(storage.join(find_newest(job).path, "state.json")))


def list_events(job, name):
    return [event for event in RunFolder(job.folder).read_events() if event["event"] == name]


# --- a stop request

# (world, the rank with the stop request, its activity at the time, the count of that activity).
TOLD = {
    "at once": (2, 1, "train", 1),
    "before the second micro-batch of the first step": (2, 0, "train", 2),
    "before a step": (2, 1, "train", 7),
    "in mid-step": (2, 1, "train", 8),
    "in mid-step, of ranks that do not have the same to do": (3, 2, "train", 8),
    "in mid-step, alone": (1, 0, "train", 15),
    "before the evaluation": (2, 1, "evaluate", 1),
    "in mid-evaluation": (2, 0, "evaluate", 2),
    "in mid-evaluation, alone": (1, 0, "evaluate", 3),
    "in the last evaluation": (2, 1, "evaluate", 4),
    "in the last step": (2, 0, "train", 16),
}
BETWEEN = ("before a step", "in mid-step", "before the evaluation", "in mid-evaluation, alone")


@pytest.fixture(scope="module")
def undisturbed(ranks, make_job, tmp_path_factory):
    training = {
        "steps": STEPS,
        "held_out": {"every": 4, "rows": 4},
        "checkpoints": {"every": 5, "keep": 100},
        "faults": {"grace": 1e-6},  # this short, ranks ask before each micro-batch
    }
    job = make_job(tmp_path_factory.mktemp("undisturbed"), training=training)
    assert continue_run(job, 1, ranks) == [STEPS]
    return job


@pytest.mark.slow
@pytest.mark.parametrize(
    "when",
    [pytest.param(when, marks=pytest.mark.soak) if when in BETWEEN else when for when in TOLD],
)
def test_all_ranks_stop_at_the_step_of_a_request_to_one(when, ranks, undisturbed, tmp_path):
    world, rank, doing, number = TOLD[when]
    job = dataclasses.replace(undisturbed, folder=str(tmp_path))
    (step,) = set(continue_run(job, world, ranks, told=(rank, doing, number)))
    # Two ranks send a heartbeat twice a step of 4 micro-batches, so do three, and one sends four.
    done = (number - 1) // (4 if world == 1 else 2)
    wanted = done if doing == "train" else {1: 4, 2: 4, 3: 4, 4: STEPS}[number]
    assert step == wanted
    assert (find_newest(job).step if find_newest(job) else 0) == step  # no completed step is lost
    if step == STEPS:  # a finished run is not started again for the missing measurement
        assert metrics.is_measured(job.folder, STEPS)
    assert set(continue_run(job, 2, ranks)) == {STEPS}
    assert read_exact_metrics(job) == read_exact_metrics(undisturbed)
    for made in (
        metrics.read_held_out_series(job.folder),
        metrics.read_held_out_series(undisturbed.folder),
    ):
        assert [line["step"] for line in made] == [4, STEPS]
    assert [line["eval/loss"] for line in metrics.read_held_out_series(job.folder)] == [
        line["eval/loss"] for line in metrics.read_held_out_series(undisturbed.folder)
    ]
    assert read_weights(job) == read_weights(undisturbed)
    samples = read_trained_samples(RunFolder(undisturbed.folder))
    assert read_trained_samples(RunFolder(job.folder)) == samples


def test_ranks_that_have_time_ask_each_other_once_a_step(ranks, make_job, tmp_path):
    """A request within a step is asked about before the next, and answered before the one after.

    The ranks stop there, and no rank has waited.
    """
    job = make_job(tmp_path, training={"steps": STEPS, "held_out": {"rows": 0}})
    # Each rank has 2 micro-batches a step: the eighth heartbeat is within the fourth step.
    assert continue_run(job, 2, ranks, told=(1, "train", 8)) == [5, 5]
    assert find_newest(job).step == 5


# --- steps without a finite update


def poison(*data_steps, how="loss", micro_batch=2):
    """Return the samples that begin a micro-batch of each of `data_steps`."""
    return {step * BATCH + micro_batch * 2: how for step in data_steps}


def build_job(make_job, folder, **training):
    settings = {"steps": STEPS, "held_out": {"rows": 0}, "checkpoints": {"every": 3, "keep": 9}}
    return make_job(folder, training=settings | training)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["loss", "gradient"])
@pytest.mark.parametrize("world", [1, 3])
def test_a_run_passes_over_what_no_update_can_be_made_of(how, world, ranks, make_job, tmp_path):
    """The run is bit-identical to one whose data lacks those steps."""
    job, clean = (build_job(make_job, tmp_path / name) for name in ("job", "clean"))
    assert continue_run(job, world, ranks, poison=poison(2, 5, 6, how=how)) == [STEPS] * world
    continue_run(clean, 1, ranks, lacking=(2, 5, 6))
    assert read_exact_metrics(job) == read_exact_metrics(clean)
    assert read_weights(job) == read_weights(clean)
    assert read_trained_samples(RunFolder(job.folder)) == read_trained_samples(
        RunFolder(clean.folder)
    )
    there = list_entries(job)
    assert (there["step"], there["data_step"]) == (STEPS, STEPS + 3)
    assert there["skipped"] == [[2, 3], [5, 7]]
    skipped = [(event["step"], event["data_step"]) for event in list_events(job, "step_skipped")]
    assert skipped == [(2, 2), (4, 5), (4, 6)]
    assert all(event["what"].startswith(how) for event in list_events(job, "step_skipped"))


@pytest.mark.slow
def test_a_run_stopped_between_skipped_steps_gives_the_undisturbed_result(
    ranks, make_job, tmp_path
):
    job, straight = (build_job(make_job, tmp_path / name) for name in ("job", "straight"))
    bad = poison(2, 4, 5, how="gradient")
    continue_run(straight, 2, ranks, poison=bad)
    for heartbeats in (8, 3, 2):
        continue_run(job, 2, ranks, poison=bad, told=(0, "train", heartbeats))
    continue_run(job, 1, ranks, poison=bad)
    assert read_exact_metrics(job) == read_exact_metrics(straight)
    assert read_weights(job) == read_weights(straight)
    assert list_entries(job)["skipped"] == list_entries(straight)["skipped"] == [[2, 3], [4, 6]]


@pytest.mark.slow
def test_too_many_in_a_row_end_the_run_on_every_rank(ranks, make_job, tmp_path):
    job = build_job(make_job, tmp_path, max_skipped_steps=2)
    assert continue_run(job, 2, ranks, poison=poison(1, 2, 4, 5)) == [STEPS] * 2
    job = build_job(make_job, tmp_path / "other", max_skipped_steps=2)
    message = r"no update can be made from 3 global batches in a row \(the last: data step 6, after"
    with pytest.raises(AssertionError, match=message):
        continue_run(job, 2, ranks, poison=poison(1, 4, 5, 6))
    assert len(list_events(job, "step_skipped")) == 4
    assert find_newest(job).step == 3


@pytest.mark.parametrize(
    ("loss", "norm", "fault"),
    [
        (1.0, 2.0, None),
        (math.nan, 2.0, "loss nan"),
        (math.inf, math.nan, "loss inf"),
        (1.0, math.inf, "gradient norm inf"),
    ],
)
def test_a_skipped_step_is_logged_with_its_cause(loss, norm, fault):
    assert StepFigures(Loss(loss, {}, {}), norm, rate=0.1, tokens=1).fault == fault
