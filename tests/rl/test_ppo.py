"""PPO in the training loop: the critic is trained, saved and resumed like the policy."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from support import rollout_runs

from trainrig.check import describe
from trainrig.errors import DataError
from trainrig.models.architecture.decoder_config import count_parameters
from trainrig.objectives.policy.ppo import CRITIC_MODEL, estimate_advantages
from trainrig.rl.reinforcement_stage import prepare
from trainrig.tokens.batches import (
    DIVERGENCE_WEIGHT,
    IGNORE,
    OLD,
    REFERENCE_TOKENS,
    RETURNS,
    REWARD_PART,
    TOKEN_ADVANTAGES,
    VALUES,
)
from trainrig.train import checkpoint
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import list_stored_batches

ADAPTIVE = {"target": 0.05, "horizon": 40.0}
PPO = {
    "kind": "PPO",
    "reference": {"weight": 0.1, "estimator": "k1", "place": "reward", "adaptive": ADAPTIVE},
}
CRITIC = {"optimizer": {"kind": "AdamW", "lr": 5e-3}}
ALONE = {"samples": 1, "prompts": 8}
STEPS = {"steps": 4, "checkpoints": {"every": 2, "keep": 9}}


@pytest.fixture(scope="module")
def make_ppo(make_run):
    """Return `make_ppo(output, …)`, which makes a run file with a critic."""

    def make(output, **changes):
        wanted = {"objective": PPO, "critic": CRITIC, "training": STEPS, **changes}
        return make_run(output, rollouts={"updates": 2}, **wanted)

    return make


def train_run(ranks, run, world, resume=False):
    """Train `run` on `world` ranks, and return its job and its final full tensors."""
    job = rollout_runs.train_run(ranks, run, world, resume)
    last, _ = checkpoint.find_newest_valid(RunFolder(job.folder))
    (found,) = ranks(1, "tensors", job=job, resume_from=last.path)
    return job, found


@pytest.fixture(scope="module")
def whole(ranks, make_ppo, tmp_path_factory):
    """Return an undisturbed run of one rank."""
    return train_run(ranks, make_ppo(tmp_path_factory.mktemp("ppo") / "run"), 1)


def read_stored_batches(job):
    return {
        (batch.number, index): (Path(batch.folder) / file["name"]).read_bytes()
        for batch in list_stored_batches(RunFolder(job.folder))
        for index, file in enumerate(batch.files)
    }


def assert_same(found, expected):
    assert read_stored_batches(found[0]) == read_stored_batches(expected[0])
    assert found[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        np.testing.assert_array_equal(found[1][name], value, err_msg=name)


@pytest.mark.slow
def test_the_critic_is_trained_and_saved_with_its_optimizer(whole, ranks, fresh):
    job, tensors = whole
    mine = {name for name in tensors if name.startswith("beside.critic.")}
    assert "beside.critic.model.head.weight" in mine
    assert "beside.critic.optimizer.state.head.weight.exp_avg" in mine
    (start,) = ranks(1, "tensors", job=job, weights_from=checkpoint.resolve(fresh))
    name = "embedding.weight"
    assert tensors[f"beside.critic.model.{name}"].shape == start[f"model.{name}"].shape
    for weights in (tensors[f"model.{name}"], tensors[f"beside.critic.model.{name}"]):
        assert np.abs(weights - start[f"model.{name}"]).max() > 1e-4
    assert not np.array_equal(tensors[f"model.{name}"], tensors[f"beside.critic.model.{name}"])
    line = metrics.read_series(job.folder)[-1]
    assert line["beside/critic/grad_norm"] > 0
    assert {"train/terms/policy", "train/terms/value"} <= line.keys()


@pytest.mark.slow
def test_a_batch_has_values_returns_and_advantages_of_tokens(whole):
    for batch in list_stored_batches(RunFolder(whole[0].folder)):
        micro = batch.read_micro_batch(0)
        there = micro.targets != IGNORE
        arrays = {name: array.astype(np.float64) for name, array in micro.arrays.items()}
        weight = arrays[DIVERGENCE_WEIGHT][0]
        rewards = -weight * (arrays[OLD] - arrays[REFERENCE_TOKENS]) * there
        worth = arrays[f"{REWARD_PART}exact"] + arrays[f"{REWARD_PART}pattern"] / 2
        for row in range(len(there)):
            rewards[row, np.flatnonzero(there[row])[-1]] += worth[row]
        expected = estimate_advantages(rewards, arrays[VALUES], there, 1.0, 0.95)
        np.testing.assert_allclose(arrays[TOKEN_ADVANTAGES], expected, atol=1e-5)
        np.testing.assert_allclose(arrays[RETURNS], (expected + arrays[VALUES]) * there, atol=1e-5)
        assert np.abs(arrays[VALUES]).sum() > 0


@pytest.mark.slow
def test_the_weight_of_the_divergence_goes_from_batch_to_batch_and_into_checkpoints(whole):
    job, _ = whole
    batches = list_stored_batches(RunFolder(job.folder))
    weights = [b.read_micro_batch(0).arrays[DIVERGENCE_WEIGHT][0] for b in batches]
    lines = metrics.read_series(job.folder)
    away = [line["train/diagnostics/completion_divergence"] for line in lines]
    assert away[0] == away[1] == 0  # both updates of the batch that the reference sampled
    expected = [0.1]
    for measured in (away[1], away[3]):
        error = max(-0.2, min(0.2, measured / 0.05 - 1))
        expected.append(expected[-1] * (1 + error * 16 / 40))
    np.testing.assert_allclose(weights, expected[:2], rtol=1e-6)
    newest, _ = checkpoint.find_newest_valid(RunFolder(job.folder))
    carried = checkpoint.read_entries(newest.path)["carried"]
    assert carried == {DIVERGENCE_WEIGHT: pytest.approx(expected[2], rel=1e-9)}


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_both_models_are_the_same_at_any_number_of_ranks(world, whole, ranks, make_ppo, tmp_path):
    assert_same(train_run(ranks, make_ppo(tmp_path / "run"), world), whole)


@pytest.mark.slow
def test_a_resumed_run_gives_the_same_results(whole, ranks, make_ppo, tmp_path):
    run = make_ppo(tmp_path / "run")
    train_run(ranks, run, 3)
    shutil.rmtree(tmp_path / "run/checkpoints/step_00000004")
    (last,) = (tmp_path / "run/online").glob("batch_00000001-*")
    shutil.rmtree(last)
    assert_same(train_run(ranks, run, 2, resume=True), whole)


@pytest.mark.slow
def test_an_adapter_trains_with_a_full_critic(ranks, make_ppo, tmp_path):
    run = make_ppo(tmp_path / "run", lora={"rank": 2}, training={"steps": 1})
    job, _, _ = prepare(run)
    checkpoint.keep_base(job.adapter, job.folder)
    _, tensors = train_run(ranks, run, 2)
    assert any(name.startswith("adapter.") for name in tensors)
    assert "beside.critic.model.embedding.weight" in tensors


def test_check_counts_the_critic(make_ppo, fresh, tmp_path):
    run = make_ppo(tmp_path / "run")
    job, inputs, counted = prepare(run)
    count = count_parameters(job.trained[CRITIC_MODEL].model).total
    assert counted["parameters_of_critic"] == count
    assert describe(run)["parameters_of_critic"] == count
    assert inputs["critic"] == checkpoint.compute_content_key(checkpoint.resolve(fresh))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective": {"kind": "GRPO"}}, "critic: objective GRPO has none"),
        (
            {"objective": {"kind": "RLOO"}, "critic": None, "rollouts": ALONE},
            r"RLOO compares.*set 2 or",
        ),
        ({"rollouts": {**ALONE, "redraws": 1}}, "a single completion has no other"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, said, make_run, tmp_path):
    with pytest.raises(ValueError, match=said):
        make_run(tmp_path / "run", **{"objective": PPO, "critic": CRITIC, **changes})


def test_a_critic_that_cannot_read_the_policy_is_refused(make_ppo, tmp_path):
    nowhere = {"checkpoint": str(tmp_path / "nowhere")}
    with pytest.raises(DataError, match="nowhere: no such folder"):
        prepare(make_ppo(tmp_path / "run", critic=nowhere))


@pytest.mark.slow
def test_a_reward_that_can_be_had_is_learnt_by_policy_and_critic(ranks, make_run, tmp_path):
    """The share of answers with an e rises well above its start, and the critic predicts it."""
    run = make_run(
        tmp_path / "run",
        objective={"kind": "PPO"},
        critic={"optimizer": {"kind": "AdamW", "lr": 2e-2}},
        rollouts={"updates": 2},
        rewards=({"kind": "PatternShape", "pattern": "e", "whole": False},),
        training={"steps": 40, "optimizer": {"kind": "AdamW", "lr": 2e-2}},
    )
    job, _ = train_run(ranks, run, 1)
    lines = metrics.read_series(job.folder)
    rewards = [line["train/diagnostics/reward"] for line in lines]
    values = [line["train/diagnostics/value"] for line in lines]
    assert np.mean(rewards[-6:]) > np.mean(rewards[:6]) + 0.4
    assert abs(np.mean(values[-6:]) - np.mean(rewards[-6:])) < 0.3


@pytest.mark.slow
def test_a_critic_needs_only_one_completion_for_each_prompt(ranks, make_run, tmp_path):
    run = make_run(
        tmp_path / "run",
        objective={"kind": "PPO"},
        rollouts=ALONE,
        training={"steps": 1},
    )
    job, _ = train_run(ranks, run, 1)
    assert json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])
    assert list_stored_batches(RunFolder(job.folder))[0].read_micro_batch(0).ids.shape[0] == 8
