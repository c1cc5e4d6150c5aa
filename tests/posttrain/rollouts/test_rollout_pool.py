"""Rollouts sampled by processes beside the ranks, and ahead of them: the same, to the last bit."""

import contextlib
import pickle
import shutil
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from trainrig import storage
from trainrig.errors import ClusterError, DataError
from trainrig.objectives.token_log_probabilities import read_tokens
from trainrig.posttrain.rollouts.stage import prepare
from trainrig.tokens.batches import (
    BEHAVIOUR,
    ENTRIES,
    IGNORE,
    IMPORTANCE,
    IMPORTANCE_LIMIT,
    OLD,
    SAMPLED,
)
from trainrig.train import checkpoint
from trainrig.train.rollout_pool.requests import (
    RolloutRequest,
    delete_requests,
    find_missing_units,
    find_open,
    name_rollouts_folder,
    raise_failure,
    read_unit,
    unit_name,
    write_failure,
    write_unit,
)
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.stored_batches import list_stored_batches

STEPS, LAG = 5, 2
LIMIT = 1.01  # low, so that steep steps are beyond it


def run_of(make_run, output, **rollouts):
    training = {"steps": STEPS, "checkpoints": {"every": 2, "keep": 9}}
    return make_run(output, rollouts=rollouts, training=training)


def lagging(make_run, output, **rollouts):
    return run_of(make_run, output, lag=LAG, importance_limit=LIMIT, **rollouts)


def trained(ranks, run, world):
    """The job of `run`, after `world` ranks have trained it to its end from where it is."""
    job, _, _ = prepare(run)
    folder = RunFolder(job.folder)
    newest = checkpoint.find_newest_valid(folder)[0]
    attempt = folder.take_attempt(newest.step if newest else 0)
    ranks(world, "train", job=job, attempt=attempt, resume_from=newest and newest.path)
    return job


@contextlib.contextmanager
def sampler(pool, run, last=None):
    """A process that samples for `run` meanwhile; it gets to know how many units it sampled."""
    with tempfile.TemporaryDirectory() as folder:
        until = Path(folder, "enough")
        job, _, _ = prepare(run)
        (process,) = pool.start(1, "sample_for", job=job, until=str(until), last=last)
        sampled = []
        try:
            yield sampled
        finally:
            until.touch()
            fine, answer = pickle.load(process.stdout)
        assert fine, answer
        sampled.append(answer)


def stored(job):
    """The bytes of each micro-batch of each batch."""
    return {
        (batch.number, index): (Path(batch.folder) / file["name"]).read_bytes()
        for batch in list_stored_batches(RunFolder(job.folder))
        for index, file in enumerate(batch.files)
    }


def came_to(job):
    """Losses and the bytes of the last weights."""
    weights = checkpoint.open_model(job.folder).build().state_dict()
    losses = [(line["step"], line["train/loss"]) for line in metrics.read_series(job.folder)]
    return losses, {name: value.numpy().tobytes() for name, value in weights.items()}


@pytest.fixture(scope="module")
def on_policy(ranks, make_run, tmp_path_factory):
    """A run whose one rank samples between its steps."""
    return trained(ranks, run_of(make_run, tmp_path_factory.mktemp("plain") / "run"), 1)


@pytest.fixture(scope="module")
def lagged(ranks, make_run, tmp_path_factory):
    """A run whose one rank samples ahead."""
    return trained(ranks, lagging(make_run, tmp_path_factory.mktemp("lagged") / "run"), 1)


@pytest.mark.slow
def test_what_another_process_samples_is_what_ranks_sample(
    on_policy, ranks, revived_ranks, make_run, tmp_path
):
    run = run_of(make_run, tmp_path / "run", actors=1)
    with sampler(revived_ranks, run) as sampled:
        job = trained(ranks, run, 2)
    assert sampled == [2 * STEPS]
    assert stored(job) == stored(on_policy)
    assert came_to(job) == came_to(on_policy)
    assert not list(Path(name_rollouts_folder(RunFolder(job.folder))).iterdir())


@pytest.mark.slow
def test_with_a_lag_a_batch_is_of_the_weights_of_before(lagged, fresh):
    """The first three of those that the run began with, each token weighed for what it became."""
    model = checkpoint.open_model(fresh).build()
    weights = []
    for batch in list_stored_batches(RunFolder(lagged.folder)):
        micro = batch.read_micro_batch(1)
        arrays, there = micro.arrays, micro.targets != IGNORE
        ids, targets = torch.from_numpy(micro.ids), torch.from_numpy(micro.targets)
        with torch.no_grad():
            read = read_tokens(model, ids, targets, 1.0, int(arrays[ENTRIES][0]))
        at_first = read.log_probabilities_BT.numpy()
        of_beginning = np.allclose(at_first, arrays[BEHAVIOUR], atol=1e-5)
        assert of_beginning == (batch.number <= LAG)
        assert np.allclose(at_first, arrays[OLD], atol=1e-5) == (batch.number == 0)
        assert np.abs(arrays[SAMPLED] - arrays[BEHAVIOUR]).max() < 1e-4
        expected = np.minimum(np.exp(arrays[OLD] - arrays[BEHAVIOUR]), LIMIT) * there
        np.testing.assert_allclose(arrays[IMPORTANCE], expected, atol=1e-6)
        assert (arrays[IMPORTANCE_LIMIT] == np.float32(LIMIT)).all()
        weights.append(arrays[IMPORTANCE][there])
    assert (weights[0] == 1).all()
    assert all(each.min() < 0.99 and each.max() == np.float32(LIMIT) for each in weights[1:])
    lines = metrics.read_series(lagged.folder)
    assert [line["train/diagnostics/importance_truncated"] > 0 for line in lines] == [
        False,
        *[True] * (STEPS - 1),
    ]
    assert all(line["train/diagnostics/sampler_gap"] < 1e-5 for line in lines)


@pytest.mark.slow
def test_a_lag_is_the_same_whoever_samples_and_however_often_it_is_killed(
    lagged, ranks, revived_ranks, mortal_ranks, make_run, tmp_path
):
    """A rank is killed before step 2, when batches 3 and 4 are asked for and not sampled: with
    weights that no later attempt has."""
    run = lagging(make_run, tmp_path / "run", actors=1)
    job, _, _ = prepare(run)
    folder = RunFolder(job.folder)
    fault = (0, "die before training", 2)
    with sampler(revived_ranks, run, last=2):
        attempt = folder.take_attempt(0)
        (process,) = mortal_ranks.start(1, "train", job=job, attempt=attempt, fault=fault)
        assert process.wait() == -signal.SIGKILL
    asked = find_open(name_rollouts_folder(folder))
    assert [(each.number, missing) for each, missing in asked] == [(3, [0, 1]), (4, [0, 1])]
    assert checkpoint.find_newest_valid(folder)[0].step == 2
    alone = lagging(make_run, tmp_path / "run")
    with pytest.raises(AssertionError, match=r"2 of 2 .* still to be .* set rollouts.actors = 1"):
        trained(ranks, alone, 1)
    with sampler(revived_ranks, run) as sampled:
        trained(ranks, run, 2)
    assert sampled[0] >= 2 * 2
    assert stored(job) == stored(lagged)
    assert came_to(job) == came_to(lagged)


@pytest.mark.slow
def test_rollouts_that_are_gone_with_their_weights_are_asked_for(lagged, ranks, make_run, tmp_path):
    """A run goes on from step 2, and nobody has batch 3 any more."""
    shutil.copytree(lagged.folder, tmp_path / "run")
    for gone in ("checkpoints/step_00000004", "checkpoints/step_00000005", "online/batch_00000003"):
        (path,) = tmp_path.glob(f"run/{gone}*")
        shutil.rmtree(path)
    with pytest.raises(AssertionError, match=r"gone, and so are the weights of 2 batches ago"):
        trained(ranks, lagging(make_run, tmp_path / "run"), 1)


def test_what_is_being_deleted_is_not_sampled_again(tmp_path, monkeypatch):
    """A sampler looks while the units are gone, and the folder not yet."""
    rollouts = str(tmp_path)
    folder = f"{rollouts}/batch_00000000-aa/attempt-1"
    RolloutRequest(folder, 0, 2, "weights", 1).write()
    for index in range(2):
        write_unit(folder, index, {"ids": np.zeros(1)})
    delete_folder, seen = storage.delete_folder, []

    def delete_slowly(path):
        storage.delete(f"{folder}/{unit_name(0)}")
        seen.append(find_open(rollouts))
        delete_folder(path)

    monkeypatch.setattr(storage, "delete_folder", delete_slowly)
    delete_requests(f"{rollouts}/batch_00000000-aa")
    assert seen == [[]]
    assert not list(tmp_path.iterdir())


def test_what_is_asked_for_is_found_until_it_is_there_or_failed(tmp_path):
    rollouts = str(tmp_path)
    for number, attempt in ((4, 1), (3, 1), (3, 2)):
        folder = f"{rollouts}/batch_{number}/attempt-{attempt}"
        RolloutRequest(folder, number, 2, f"{folder}/weights", attempt).write()
    newest = f"{rollouts}/batch_3/attempt-2"
    write_unit(newest, 1, {"ids": np.arange(3)})
    (tmp_path / "batch_9").mkdir()
    (tmp_path / "batch_9" / "00000.npz").touch()  # of a request that was forgotten
    found = [(each.number, each.attempt, missing) for each, missing in find_open(rollouts)]
    assert found == [(3, 2, [0]), (3, 1, [0, 1]), (4, 1, [0, 1])]
    assert read_unit(newest, 0) is None and read_unit(newest, 1)["ids"].tolist() == [0, 1, 2]
    assert find_missing_units(newest, 3) == [0, 2]
    raise_failure(newest)
    write_failure(newest, DataError("rewards: 'exact' scored none"))
    assert [each.attempt for each, _ in find_open(rollouts)] == [1, 1]
    with pytest.raises(DataError, match=r"^rewards: 'exact' scored none$"):
        raise_failure(newest)
    write_failure(newest, ClusterError("actors die"))
    with pytest.raises(ClusterError, match="actors die"):
        raise_failure(newest)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rollouts": {"actors": -1}}, r"should be 1 or more, or \[fewest, most\].*; 0 for none"),
        ({"rollouts": {"lag": -1}}, "greater than or equal to 0"),
        ({"rollouts": {"importance_limit": 0.5}}, "greater than or equal to 1"),
        (
            {"rollouts": {"lag": 1}, "training": {"spikes": {}}},
            r"rollouts.lag and training.spikes: skipping data would need weights",
        ),
        ({"rollouts": {"lag": 1}, "training": {"skip_data": ((1, 2),)}}, "training.skip_data"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, said, make_run, tmp_path):
    with pytest.raises(ValueError, match=said):
        make_run(tmp_path / "run", **changes)


def test_a_cluster_is_asked_for_workers_and_actors(make_run, tmp_path):
    run = make_run(tmp_path / "run", workers=(1, 2), rollouts={"actors": 3})
    asked = run.request_resources(there_are_gpus=False)
    assert (asked.least, asked.most) == (4, 5)
