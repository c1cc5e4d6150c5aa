"""Batches made during training: stored before they are trained, and never made twice."""

import dataclasses
import shutil
import signal
from pathlib import Path

import pytest
from support.rollout_runs import read_stored_batches

from trainrig.errors import ConfigError, DataError
from trainrig.runs.step_trace import trace
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.pretrain import prepare
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import list_stored_batches

TRAINING = {"steps": 8, "checkpoints": {"every": 3, "keep": 100}}
UPDATES = 2


@pytest.fixture(scope="module")
def whole(ranks, make_pretraining, tmp_path_factory):
    """Return an undisturbed online run of two ranks."""
    job = prepare(make_pretraining(tmp_path_factory.mktemp("online"), training=TRAINING))
    attempt = RunFolder(job.folder).take_attempt(0)
    ranks(2, "train", job=job, attempt=attempt, online=UPDATES)
    return job


def read_losses(job):
    return [(line["step"], line["train/loss"]) for line in metrics.read_series(job.folder)]


def continue_run(ranks, job, world):
    folder = RunFolder(job.folder)
    newest, _ = find_newest_valid(folder)
    attempt = folder.take_attempt(newest.step)
    ranks(world, "train", job=job, attempt=attempt, resume_from=newest.path, online=UPDATES)


@pytest.mark.slow
def test_each_batch_is_made_once_of_the_weights_before_it(whole):
    made = list_stored_batches(RunFolder(whole.folder))
    assert [(batch.number, batch.step, batch.attempt) for batch in made] == [
        (n, n * UPDATES, 1) for n in range(4)
    ]
    assert len({batch.read_micro_batch(0).ids[:, 3:].tobytes() for batch in made}) == 4
    assert len(read_losses(whole)) == 8
    assert made[0].denominators == {"tokens": 5 * 2 * 5}


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 3])
def test_batches_and_weights_are_the_same_at_any_number_of_ranks(world, whole, ranks, tmp_path):
    job = dataclasses.replace(whole, folder=str(tmp_path / "run"))
    attempt = RunFolder(job.folder).take_attempt(0)
    ranks(world, "train", job=job, attempt=attempt, online=UPDATES)
    assert read_stored_batches(job) == read_stored_batches(whole)
    assert read_losses(job) == read_losses(whole)
    assert read_tensors(ranks, job) == read_tensors(ranks, whole)


def read_tensors(ranks, job):
    """Return the bytes of each tensor of the last checkpoint, whichever rank wrote it."""
    newest, _ = find_newest_valid(RunFolder(job.folder))
    (read,) = ranks(1, "tensors", job=job, weights_from=newest.path)
    return {name: value.tobytes() for name, value in read.items() if name.startswith("model.")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "step"),
    [
        (1, 4),
        pytest.param(3, 4, marks=pytest.mark.chaos),
        pytest.param(2, 5, marks=pytest.mark.chaos),
    ],
)
def test_killed_between_storing_and_training_it_reads_what_is_there(
    world, step, whole, ranks, mortal_ranks, tmp_path
):
    """Two ranks are killed before update `step`, from 0; `world` ranks resume at step 3."""
    job = dataclasses.replace(whole, folder=str(tmp_path / "run"))
    attempt = RunFolder(job.folder).take_attempt(0)
    fault = (0, "die before training", step)
    processes = mortal_ranks.start(
        2, "train", job=job, attempt=attempt, online=UPDATES, fault=fault
    )
    assert processes[0].wait() == -signal.SIGKILL
    before = list_stored_batches(RunFolder(job.folder))
    assert before[-1].number == step // UPDATES
    continue_run(ranks, job, world)
    after = list_stored_batches(RunFolder(job.folder))
    assert after[: len(before)] == before
    assert [batch.attempt for batch in after[len(before) :]] == [2] * (4 - len(before))
    assert read_stored_batches(job) == read_stored_batches(whole)
    assert read_losses(job) == read_losses(whole)
    assert read_tensors(ranks, job) == read_tensors(ranks, whole)


def test_a_batch_that_is_gone_in_the_midst_of_its_updates_is_asked_for(whole, ranks, tmp_path):
    job = dataclasses.replace(whole, folder=str(tmp_path / "run"))
    shutil.copytree(whole.folder, job.folder)
    (gone,) = Path(job.folder).glob("online/batch_00000001-*")
    shutil.rmtree(gone)
    for path in Path(job.folder).glob("checkpoints/step_0000000[68]"):
        shutil.rmtree(path)
    with pytest.raises(AssertionError, match="1 of 2 updates from it; restore that folder"):
        continue_run(ranks, job, 1)


def test_a_damaged_batch_is_not_trained_on(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole.folder, folder)
    batch = list_stored_batches(RunFolder(str(folder)))[2]
    path = Path(batch.folder) / batch.files[1]["name"]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="bytes differ"):
        batch.read_micro_batch(1)
    assert batch.read_micro_batch(0).samples.tolist() == [20, 21]


def test_a_checkpoint_of_other_online_settings_is_refused(whole, ranks, tmp_path):
    job = dataclasses.replace(whole, folder=str(tmp_path / "run"))
    newest, _ = find_newest_valid(RunFolder(whole.folder))
    attempt = RunFolder(job.folder).take_attempt(newest.step)
    with pytest.raises(AssertionError, match="trained on other data"):
        ranks(1, "train", job=job, attempt=attempt, resume_from=newest.path, online=4)


def test_trace_reads_the_batch_that_was_stored(whole):
    batches = list_stored_batches(RunFolder(whole.folder))
    for step in (5, 6):  # two updates of one batch
        traced = trace(whole.folder, step)
        assert traced.log == "agrees"
        assert traced.loss == dict(read_losses(whole))[step]
        assert traced.sequences[2].ids == tuple(batches[2].read_micro_batch(1).ids[0].tolist())
        assert {sequence.source for sequence in traced.sequences} == {"rollouts"}
    with pytest.raises(ConfigError, match=r"--step 9: .* has no batch"):
        trace(whole.folder, 9)
    with pytest.raises(ConfigError, match="no source 'web'"):
        trace(whole.folder, 1, "web")
