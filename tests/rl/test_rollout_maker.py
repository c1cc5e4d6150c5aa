"""Waves of prompts that continue until a batch is full of groups with a learning signal."""

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from support.rollout_runs import continue_run, start_samplers

from trainrig.rl.reinforcement_run_file import Rollouts
from trainrig.rl.reinforcement_stage import prepare
from trainrig.rl.rollout_maker import PROMPTS, TOTALS, fill_batch
from trainrig.rl.rollout_requests import name_rollouts_folder
from trainrig.tokens.batches import FLAT, IDS, IGNORE, SAMPLED, TARGETS, WAVES
from trainrig.train import checkpoint
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import list_stored_batches

STEPS = 6
MOST = 4
# Half of the groups of the untrained model have an answer with a vowel and one without.
REWARDS = ({"kind": "PatternShape", "pattern": "[aeo]", "whole": False},)


def run_of(make_run, output, **rollouts):
    training = {"steps": STEPS, "checkpoints": {"every": 1, "keep": 9}}
    rollouts = {"waves": MOST, "updates": 2, "samples": 2, "micro_batch": 4, **rollouts}
    return make_run(output, rollouts=rollouts, training=training, rewards=REWARDS)


def read_results(job):
    """Return the bytes of trained micro-batches and of the final weights, and the losses."""
    batches = {
        (batch.number, batch.waves, index): (Path(batch.folder) / file["name"]).read_bytes()
        for batch in list_stored_batches(RunFolder(job.folder))
        for index, file in enumerate(batch.files)
    }
    weights = checkpoint.open_model(job.folder).build().state_dict()
    losses = [(line["step"], line["train/loss"]) for line in metrics.read_series(job.folder)]
    return batches, losses, {name: value.numpy().tobytes() for name, value in weights.items()}


@pytest.fixture(scope="module")
def alone(ranks, make_run, tmp_path_factory):
    """Return a run whose single rank samples between its steps."""
    return continue_run(ranks, run_of(make_run, tmp_path_factory.mktemp("waves") / "run"), 1)


def make_unit(totals, rows, width):
    """Return a unit with [G, 2] totals.

    Row n of B has n + 1 ids, of which the last is sampled.
    """
    count = len(rows)
    arrays = {
        IDS: np.zeros((count, width), dtype=np.int64),
        TARGETS: np.full((count, width), IGNORE),
        SAMPLED: np.zeros((count, width), dtype=np.float32),
        FLAT: np.repeat([len(set(group)) == 1 for group in totals], 2).astype(np.int64),
        TOTALS: np.array(totals, dtype=np.float64),
        PROMPTS: np.array(rows),
    }
    for row, number in enumerate(rows):
        arrays[IDS][row, : number + 1] = number
        arrays[TARGETS][row, number] = number
        arrays[SAMPLED][row, number] = -number
    return arrays


def test_a_batch_is_of_the_first_groups_that_are_not_flat():
    flat = [1.0, 1.0]
    told = [0.0, 1.0]
    wanted = Rollouts(prompts=2, samples=2, micro_batch=2, waves=3)
    first = [make_unit([flat, told], [0, 0, 2, 1], 5), make_unit([flat, flat], [3, 3, 4, 4], 9)]
    second = [make_unit([flat, told], [5, 5, 6, 6], 7), make_unit([told, told], [7, 7, 8, 8], 9)]
    assert fill_batch([first], wanted, 99) is None
    found = fill_batch([first, second], wanted, 99)
    assert [micro_batch[PROMPTS].tolist() for micro_batch in found] == [[2, 1], [6, 6]]
    assert [micro_batch[TOTALS].tolist() for micro_batch in found] == [[told], [told]]
    assert found[0][IDS].tolist() == [[2, 2, 2], [1, 1, 0]]  # no wider than necessary
    assert found[0][TARGETS].tolist() == [[IGNORE, IGNORE, 2], [IGNORE, 1, IGNORE]]
    assert all((micro_batch[WAVES] == 2).all() for micro_batch in found)
    # Two groups of one micro-batch, from units of other widths.
    (joined,) = fill_batch([first, second], wanted.model_copy(update={"micro_batch": 4}), 99)
    assert joined[IDS].tolist()[0] == [2, 2, 2, 0, 0, 99, 99]
    assert joined[SAMPLED][2].tolist() == [0, 0, 0, 0, 0, 0, -6]
    # After the last wave, groups without a signal fill the rest, in the order of sampling.
    last = fill_batch([first], wanted.model_copy(update={"waves": 1}), 99)
    assert [micro_batch[PROMPTS].tolist() for micro_batch in last] == [[0, 0], [2, 1]]


@pytest.mark.slow
def test_batches_continue_where_earlier_waves_ended(alone, fresh):
    """The first batch has the same groups as one-by-one sampling by the initial model."""
    batches = list_stored_batches(RunFolder(alone.folder))
    assert any(batch.waves > 1 for batch in batches)
    maker = alone.make_batches()
    model = checkpoint.open_model(fresh).build()
    expected = []
    waves = 0
    while len(expected) < 4 and waves < MOST:
        with torch.no_grad():
            units = [maker.sample(model, waves, index) for index in range(2)]
        expected += [
            arrays[TARGETS][group * 2 : group * 2 + 2]
            for arrays in units
            for group in range(2)
            if not arrays[FLAT][group * 2]
        ]
        waves += 1
    assert len(expected) >= 4 and batches[0].waves == waves
    kept = [batches[0].read_micro_batch(index).targets for index in range(2)]
    said = [row[row != IGNORE].tolist() for micro in kept for row in micro]
    assert said == [row[row != IGNORE].tolist() for group in expected[:4] for row in group]
    saved = list(Path(alone.folder, "checkpoints").rglob("manifest.json"))
    assert saved
    for manifest in saved:
        entries = checkpoint.read_entries(str(manifest.parent))
        step = entries["step"]
        drawn = sum(batch.waves for batch in batches if batch.step + batch.updates <= step)
        assert entries.get("carried", {}).get("waves_drawn", 0) == drawn
    line = metrics.read_series(alone.folder)[0]
    assert line["train/diagnostics/waves"] == batches[0].waves
    assert line["train/diagnostics/flat"] == 0


@pytest.mark.slow
def test_two_ranks_continue_the_waves_of_a_checkpoint(alone, ranks, make_run, tmp_path):
    """They resume within the second batch; the third is lost."""
    shutil.copytree(alone.folder, tmp_path / "run")
    for gone in ("checkpoints/step_0000000[4-6]*", "online/batch_00000002*"):
        for path in list(tmp_path.glob(f"run/{gone}")):
            shutil.rmtree(path)
    assert checkpoint.find_newest_valid(RunFolder(str(tmp_path / "run")))[0].step == 3
    assert len(list_stored_batches(RunFolder(str(tmp_path / "run")))) == 2
    job = continue_run(ranks, run_of(make_run, tmp_path / "run"), 2)
    assert read_results(job) == read_results(alone)


@pytest.mark.chaos
@pytest.mark.parametrize(("world", "actors"), [(2, 0), (2, 1), (1, 3)])
def test_the_batch_does_not_depend_on_the_sampling_process(
    world, actors, alone, ranks, revived_ranks, make_run, tmp_path
):
    run = run_of(make_run, tmp_path / "run", actors=actors)
    with start_samplers(revived_ranks, run, actors):
        job = continue_run(ranks, run, world)
    assert read_results(job) == read_results(alone)
    assert not list(Path(name_rollouts_folder(RunFolder(job.folder))).rglob("*.npz"))


@pytest.mark.chaos
def test_a_killed_run_continues_its_waves_with_the_same_samples(
    alone, ranks, revived_ranks, mortal_ranks, make_run, tmp_path
):
    """It is killed within the second batch; a checkpoint has the earlier cursor."""
    run = run_of(make_run, tmp_path / "run", actors=1)
    job, _, _ = prepare(run)
    fault = (0, "die before training", 3)
    with start_samplers(revived_ranks, run, 1):
        attempt = RunFolder(job.folder).take_attempt(0)
        (process,) = mortal_ranks.start(1, "train", job=job, attempt=attempt, fault=fault)
        assert process.wait() == -signal.SIGKILL
    with start_samplers(revived_ranks, run, 1):
        continue_run(ranks, run, 2)
    assert read_results(job) == read_results(alone)
