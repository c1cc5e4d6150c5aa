"""Completions of several turns: an environment's text is input, but never a target."""

from pathlib import Path

import numpy as np
import pytest
from support.rollout_runs import train_run

from trainrig.check import describe
from trainrig.errors import ConfigError
from trainrig.rl.reinforcement_stage import prepare
from trainrig.tokens.batches import (
    ADVANTAGES,
    FINISHED,
    IGNORE,
    OLD,
    REWARD_FAULTS,
    REWARD_PART,
    REWARDS,
    SAMPLED,
    TOKENS,
    TURNS,
)
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import list_stored_batches

# An untrained model ends a turn at about every third letter here.
SOURCE = """
class Environment:
    def reset(self, row):
        self.turns = 0
        return " [" + row["question"][:2] + "] "

    def step(self, text):
        self.turns += 1
        if "z" in text:
            raise ValueError("no z")
        return f"({self.turns})", 0.5, self.turns == 3
"""
STOPS = tuple("abcdefghijklmn ")


@pytest.fixture(scope="module")
def make_turns(make_run, tmp_path_factory):
    """Return `make_turns(output, …)`, which makes a run file with a user's environment."""
    path = tmp_path_factory.mktemp("environment") / "game.py"
    path.write_text(SOURCE)
    environment = {"kind": "PythonEnvironment", "file": str(path), "stop": STOPS, "turns": 3}

    def make(output, **changes):
        given = {
            "environment": {**environment, **changes.pop("environment", {})},
            "rollouts": {"maximum_tokens": 16, "prompt_tokens": 30},
            "rewards": ({"kind": "PatternShape", "pattern": r"\(1\)", "whole": False},),
            "training": {"steps": 2},
            **changes,
        }
        return make_run(output, **given)

    return make


def read_stored_batches(job):
    return {
        (batch.number, index): (Path(batch.folder) / file["name"]).read_bytes()
        for batch in list_stored_batches(RunFolder(job.folder))
        for index, file in enumerate(batch.files)
    }


@pytest.fixture(scope="module")
def whole(ranks, make_turns, tmp_path_factory):
    return train_run(ranks, make_turns(tmp_path_factory.mktemp("turns") / "run"), 1)


@pytest.mark.slow
def test_an_environments_tokens_are_read_and_not_trained_on(whole, fresh):
    encoder = Encoder.of(checkpoint.read_tokenizer_files(checkpoint.resolve(fresh)))
    turns = []
    for batch in list_stored_batches(RunFolder(whole.folder)):
        trained_on = 0
        for index in range(len(batch.files)):
            micro = batch.read_micro_batch(index)
            there = micro.targets != IGNORE
            trained_on += int(there.sum())
            for row in range(len(there)):
                places = np.flatnonzero(there[row])
                width = int(places[-1]) + 1
                # Each input is the target of the previous position, where that has one.
                follows = micro.ids[row, 1:width]
                known = there[row, : width - 1]
                np.testing.assert_array_equal(
                    follows[known], micro.targets[row, : width - 1][known]
                )
                others = [int(i) for i, mine in zip(follows, known, strict=True) if not mine]
                said = encoder.decode(others)
                number = int(micro.arrays[TURNS][row])
                turns.append(number)
                for turn in range(1, number):
                    assert f"({turn})" in said
                assert f"({number})" not in said
            assert (micro.arrays[SAMPLED][~there] == 0).all()
            assert (micro.arrays[OLD][~there] == 0).all()
            assert np.abs(micro.arrays[SAMPLED] - micro.arrays[OLD]).max() < 1e-4
            assert there.sum(1).min() >= 1
        assert batch.denominators[TOKENS] == trained_on
    assert {1, 2} <= set(turns) and max(turns) <= 3
    line = metrics.read_series(whole.folder)[-1]
    assert line["train/diagnostics/turns"] == pytest.approx(np.mean(turns[16:]))


def test_its_reward_is_a_part_of_the_sum(whole):
    micro = list_stored_batches(RunFolder(whole.folder))[0].read_micro_batch(0)
    worth, shape = (micro.arrays[f"{REWARD_PART}{n}"] for n in ("environment", "pattern"))
    np.testing.assert_allclose(micro.arrays[REWARDS], worth + shape)
    for reward, turns in zip(worth, micro.arrays[TURNS], strict=True):
        assert reward in (0.0, 0.5 * turns)  # 0.0: its step failed
    assert (micro.arrays[REWARD_FAULTS] >= 0).all()
    assert set(micro.arrays[FINISHED].tolist()) <= {0, 1}
    assert np.isfinite(micro.arrays[ADVANTAGES]).all()


@pytest.mark.slow
def test_turns_are_the_same_at_any_number_of_ranks(whole, ranks, make_turns, tmp_path):
    assert read_stored_batches(
        train_run(ranks, make_turns(tmp_path / "run"), 2)
    ) == read_stored_batches(whole)


@pytest.mark.slow
def test_a_critic_goes_over_turns(ranks, make_turns, tmp_path):
    run = make_turns(tmp_path / "run", objective={"kind": "PPO"}, rewards=())
    assert metrics.read_series(train_run(ranks, run, 2).folder)[-1]["train/terms/value"] >= 0


@pytest.mark.slow
def test_a_calculator_needs_no_file(ranks, make_run, tmp_path):
    run = make_run(
        tmp_path / "run",
        environment={"kind": "Calculator", "begin": "e", "end": "a", "turns": 2},
        rollouts={"maximum_tokens": 12, "prompt_tokens": 30},
        training={"steps": 1},
    )
    batch = list_stored_batches(RunFolder(train_run(ranks, run, 1).folder))[0]
    assert max(batch.read_micro_batch(i).arrays[TURNS].max() for i in (0, 1)) == 2


def test_its_source_is_hashed_and_named_by_check(make_turns, tmp_path):
    run = make_turns(tmp_path / "run")
    _, inputs, _ = prepare(run)
    assert len(inputs["environment.source"]) == 64
    said = describe(run)["environment_source"]
    assert said == f"PythonEnvironment, SHA-256 {inputs['environment.source'][:16]}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rollouts": {"stop": ("x",)}}, "environment decides where a turn ends"),
        ({"environment": None, "rewards": ()}, "rewards: none is given"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, said, make_run, tmp_path):
    given = {"environment": {"kind": "Calculator"}, **changes}
    with pytest.raises(ValueError, match=said):
        make_run(tmp_path / "run", **given)


def test_names_tell_an_environment_from_rewards(make_turns, tmp_path):
    with pytest.raises(ConfigError, match="2 have the name 'pattern'"):
        prepare(make_turns(tmp_path / "run", environment={"name": "pattern"}))
