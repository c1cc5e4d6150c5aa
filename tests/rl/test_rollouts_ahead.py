"""Rollouts sampled by separate processes, and ahead of training: identical to the last bit."""

import contextlib
import pickle
import shutil
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from support.rollout_runs import continue_run, read_results, read_stored_batches

from trainrig import storage
from trainrig.errors import ClusterError, DataError
from trainrig.objectives.log_probabilities import read_tokens
from trainrig.rl.reinforcement_stage import prepare
from trainrig.rl.rollout_requests import (
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
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import list_stored_batches

STEPS = 5
LAG = 2
LIMIT = 1.01  # low, so that large updates exceed it


def run_of(make_run, output, **rollouts):
    training = {"steps": STEPS, "checkpoints": {"every": 2, "keep": 9}}
    return make_run(output, rollouts=rollouts, training=training)


def make_lagged_run(make_run, output, **rollouts):
    return run_of(make_run, output, lag=LAG, importance_limit=LIMIT, **rollouts)


@contextlib.contextmanager
def start_sampler(pool, run, last=None):
    """Start a process that samples for `run`; it returns how many units it sampled."""
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


@pytest.fixture(scope="module")
def on_policy(ranks, make_run, tmp_path_factory):
    """Return a run whose single rank samples between its steps."""
    return continue_run(ranks, run_of(make_run, tmp_path_factory.mktemp("plain") / "run"), 1)


@pytest.fixture(scope="module")
def lagged(ranks, make_run, tmp_path_factory):
    """Return a run whose single rank samples ahead."""
    return continue_run(
        ranks, make_lagged_run(make_run, tmp_path_factory.mktemp("lagged") / "run"), 1
    )


@pytest.mark.slow
def test_a_separate_process_samples_what_ranks_sample(
    on_policy, ranks, revived_ranks, make_run, tmp_path
):
    run = run_of(make_run, tmp_path / "run", actors=1)
    with start_sampler(revived_ranks, run) as sampled:
        job = continue_run(ranks, run, 2)
    assert sampled == [2 * STEPS]
    assert read_stored_batches(job) == read_stored_batches(on_policy)
    assert read_results(job) == read_results(on_policy)
    assert not list(Path(name_rollouts_folder(RunFolder(job.folder))).iterdir())


@pytest.mark.slow
def test_with_a_lag_a_batch_is_of_the_weights_of_before(lagged, fresh):
    """The first three batches come from the initial weights.

    Importance weights correct each token for the later weights.
    """
    model = checkpoint.open_model(fresh).build()
    weights = []
    for batch in list_stored_batches(RunFolder(lagged.folder)):
        micro = batch.read_micro_batch(1)
        arrays = micro.arrays
        there = micro.targets != IGNORE
        ids = torch.from_numpy(micro.ids)
        targets = torch.from_numpy(micro.targets)
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
    assert all(array.min() < 0.99 and array.max() == np.float32(LIMIT) for array in weights[1:])
    lines = metrics.read_series(lagged.folder)
    assert [line["train/diagnostics/importance_truncated"] > 0 for line in lines] == [
        False,
        *[True] * (STEPS - 1),
    ]
    assert all(line["train/diagnostics/sampler_gap"] < 1e-5 for line in lines)


@pytest.mark.slow
def test_a_lagged_run_is_the_same_for_any_samplers_and_kills(
    lagged, ranks, revived_ranks, mortal_ranks, make_run, tmp_path
):
    """A rank is killed before step 2, when batches 3 and 4 are requested and not sampled.

    Their weights exist in no later attempt.
    """
    run = make_lagged_run(make_run, tmp_path / "run", actors=1)
    job, _, _ = prepare(run)
    folder = RunFolder(job.folder)
    fault = (0, "die before training", 2)
    with start_sampler(revived_ranks, run, last=2):
        attempt = folder.take_attempt(0)
        (process,) = mortal_ranks.start(1, "train", job=job, attempt=attempt, fault=fault)
        assert process.wait() == -signal.SIGKILL
    asked = find_open(name_rollouts_folder(folder))
    assert [(request.number, missing) for request, missing in asked] == [(3, [0, 1]), (4, [0, 1])]
    assert checkpoint.find_newest_valid(folder)[0].step == 2
    alone = make_lagged_run(make_run, tmp_path / "run")
    with pytest.raises(AssertionError, match=r"2 of 2.*still.*set rollouts.actors = 1"):
        continue_run(ranks, alone, 1)
    with start_sampler(revived_ranks, run) as sampled:
        continue_run(ranks, run, 2)
    assert sampled[0] >= 2 * 2
    assert read_stored_batches(job) == read_stored_batches(lagged)
    assert read_results(job) == read_results(lagged)


@pytest.mark.slow
def test_rollouts_that_are_gone_with_their_weights_are_asked_for(lagged, ranks, make_run, tmp_path):
    """A run resumes at step 2, after batch 3 was lost."""
    shutil.copytree(lagged.folder, tmp_path / "run")
    for gone in ("checkpoints/step_00000004", "checkpoints/step_00000005", "online/batch_00000003"):
        (path,) = tmp_path.glob(f"run/{gone}*")
        shutil.rmtree(path)
    with pytest.raises(AssertionError, match="weights of 2 batches"):
        continue_run(ranks, make_lagged_run(make_run, tmp_path / "run"), 1)


def test_a_batch_under_deletion_is_not_sampled_again(tmp_path, monkeypatch):
    """A sampler looks after the units are deleted, but before the folder is."""
    rollouts = str(tmp_path)
    folder = f"{rollouts}/batch_00000000-aa/attempt-1"
    RolloutRequest(folder, 0, 2, "weights", 1).write()
    for index in range(2):
        write_unit(folder, index, {"ids": np.zeros(1)})
    delete_folder = storage.delete_folder
    seen = []

    def delete_slowly(path):
        storage.delete(f"{folder}/{unit_name(0)}")
        seen.append(find_open(rollouts))
        delete_folder(path)

    monkeypatch.setattr(storage, "delete_folder", delete_slowly)
    delete_requests(f"{rollouts}/batch_00000000-aa")
    assert seen == [[]]
    assert not list(tmp_path.iterdir())


def test_a_request_is_open_until_it_is_done_or_failed(tmp_path):
    rollouts = str(tmp_path)
    for number, attempt in ((4, 1), (3, 1), (3, 2)):
        folder = f"{rollouts}/batch_{number}/attempt-{attempt}"
        RolloutRequest(folder, number, 2, f"{folder}/weights", attempt).write()
    newest = f"{rollouts}/batch_3/attempt-2"
    write_unit(newest, 1, {"ids": np.arange(3)})
    (tmp_path / "batch_9").mkdir()
    (tmp_path / "batch_9" / "00000.npz").touch()  # left over from an abandoned request
    found = [(request.number, request.attempt, missing) for request, missing in find_open(rollouts)]
    assert found == [(3, 2, [0]), (3, 1, [0, 1]), (4, 1, [0, 1])]
    assert read_unit(newest, 0) is None and read_unit(newest, 1)["ids"].tolist() == [0, 1, 2]
    assert find_missing_units(newest, 3) == [0, 2]
    raise_failure(newest)
    write_failure(newest, DataError("rewards: 'exact' scored none"))
    assert [request.attempt for request, _ in find_open(rollouts)] == [1, 1]
    with pytest.raises(DataError, match=r"^rewards: 'exact' scored none$"):
        raise_failure(newest)
    write_failure(newest, ClusterError("actors end"))
    with pytest.raises(ClusterError, match="actors end"):
        raise_failure(newest)


def test_a_cluster_is_asked_for_workers_and_actors(make_run, tmp_path):
    run = make_run(tmp_path / "run", workers=(1, 2), rollouts={"actors": 3})
    asked = run.request_resources(there_are_gpus=False)
    assert (asked.least, asked.most) == (4, 5)
