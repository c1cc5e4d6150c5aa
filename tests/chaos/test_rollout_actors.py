"""Rollout actors that are killed, added and removed, and kills of a rank and of the driver.

The rollouts and weights equal those of a run that samples without actors.
"""

import dataclasses
import json
import os
import random
import signal
import time

import pytest
from support import faults
from support.remembered import remember
from support.rollout_runs import read_stored_batches

from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.ray_runtime.ray_session import join
from trainrig.rl.reinforcement_run_file import ReinforcementLearning
from trainrig.rl.reinforcement_stage import prepare
from trainrig.tokens.special_tokens import TokenizerFiles
from trainrig.train.checkpoint import write_model
from trainrig.train.elastic import trainer
from trainrig.train.run import progress
from trainrig.train.run.run_folder import RunFolder

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]
STEPS = 24


@pytest.fixture(scope="module")
def make_job(tokens, tmp_path_factory):
    """Return a function that makes jobs.

    `make_job(folder, lag=1, …)` makes a job of reinforcement learning of a tiny model.
    """
    base = tmp_path_factory.mktemp("rl")
    path = base / "prompts.jsonl"
    fresh = str(base / "fresh")
    rows = [{"prompt": f"the sea {n}"} for n in range(16)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = Decoder(DecoderConfig(layers=2, channels=64, heads=4, positions=128, vocabulary=320))
    initialise(model, seed=1)
    write_model(fresh, model.config, TokenizerFiles.read(tokens).tokenizer, model.state_dict())

    def make(folder, **rollouts):
        run = ReinforcementLearning.model_validate(
            {
                "checkpoint": fresh,
                "output": str(folder),
                "prompts": {"paths": (str(path),)},
                "rollouts": {
                    **{"prompts": 6, "samples": 4, "micro_batch": 4},
                    **{"prompt_tokens": 32, "maximum_tokens": 90, **rollouts},
                },
                "rewards": ({"kind": "PatternShape", "pattern": "e", "whole": False},),
                "training": {
                    "steps": STEPS,
                    "optimizer": {"kind": "AdamW", "lr": 0.003},
                    "checkpoints": {"every": 4, "keep": 2},
                    "faults": {"hang_seconds": 10.0, "max_restarts": 9},
                },
            }
        )
        return prepare(run)[0]

    return make


@pytest.fixture(scope="module")
def straight(make_job, ranks, tmp_path_factory):
    """Return a function that makes an undisturbed run of one rank without Ray: `straight(…)`."""

    @remember
    def run(**rollouts):
        job = make_job(tmp_path_factory.mktemp("straight") / "run", **rollouts)
        ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
        return job

    return run


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({}, signal.SIGKILL),
        ({"lag": 2}, signal.SIGSTOP),
        pytest.param({"waves": 3}, signal.SIGKILL, marks=pytest.mark.soak),
    ],
    ids=["on-policy", "lag", "waves"],
)
def test_an_actor_a_rank_and_the_driver_are_killed(
    changes, how, make_job, straight, start_driver, assert_equal, tmp_path
):
    job = make_job(tmp_path / "run", actors=1, **changes)
    events = faults.Events(job.folder)
    first = start_driver(job, 1)
    events.wait_for_a_step()
    os.kill(events.wait("rollout_actor_started")["pid"], how)
    events.wait("rollout_actor_started", 2)
    (lost,) = events.all("rollout_actor_lost")
    assert ("no completed unit for" in lost["problem"]) == (how == signal.SIGSTOP), lost
    events.wait("checkpoint", len(events.all("checkpoint")) + 1)
    os.kill(events.ranks()[0], signal.SIGKILL)
    events.wait("attempt_failed")
    events.wait_for_a_step()
    events.wait("checkpoint", len(events.all("checkpoint")) + 1)
    first.kill()
    first.wait()
    assert not events.all("finished")
    second = start_driver(job, 1)
    assert second.wait(timeout=300) == 0, second.stderr.read()
    assert events.folder.read_attempts()[-1].resumed_step >= 4
    assert read_stored_batches(job) == read_stored_batches(straight(**changes))
    assert_equal(job, straight(**changes))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("waves", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_one_two_and_three_actors_sample_the_same_rollouts(
    waves, several_raylets, make_job, straight, assert_equal, tmp_path
):
    """Start with two nodes for the worker and one actor; add two nodes, then kill one of them."""
    join()
    several_raylets.shrink_to(2)
    job = make_job(tmp_path / "run", actors=(1, 3), waves=waves)
    job = dataclasses.replace(job, training=job.training.model_copy(update={"steps": STEPS}))
    events = faults.Events(job.folder)
    aside = faults.Aside(lambda: trainer.run(job, 1))
    events.wait_for_a_step()
    assert len(events.all("rollout_actor_started")) == 1
    several_raylets.come()
    several_raylets.come()
    events.wait("rollout_actor_started", 3)
    assert not events.all("finished")
    several_raylets.die()
    events.wait("rollout_actor_lost")
    assert not events.all("finished")
    aside.end()
    assert len(events.all("rollout_actor_started")) == 3
    assert len(events.all("attempt_started")) == 1
    assert read_stored_batches(job) == read_stored_batches(straight(waves=waves))
    assert_equal(job, straight(waves=waves))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_kills_at_random_instants(
    make_job, ranks, start_driver, assert_equal, write_result, tmp_path
):
    """Kill sampling actors, ranks and drivers at random, each after some progress."""
    seed = int(time.time())
    steps = 120
    dice = random.Random(seed)

    def lengthen(job):
        faults = job.training.faults.model_copy(update={"max_restarts": 40})
        training = job.training.model_copy(update={"steps": steps, "faults": faults})
        return dataclasses.replace(job, training=training)

    straight = lengthen(make_job(tmp_path / "straight"))
    ranks(1, "train", job=straight, attempt=RunFolder(straight.folder).take_attempt(0))
    job = lengthen(make_job(tmp_path / "run", actors=1))
    events = faults.Events(job.folder)
    driver = start_driver(job, 1)
    killed = []
    for _ in range(20):
        events.wait("checkpoint", len(events.all("checkpoint")) + 1)
        time.sleep(dice.uniform(0.0, 1.0))
        assert not events.all("finished")
        what = dice.choice(("actor", "rank", "driver"))
        if what == "actor":
            started = events.all("rollout_actor_started")
            os.kill(started[-1]["pid"], signal.SIGKILL)
            began = time.monotonic()
            events.wait("rollout_actor_started", len(started) + 1)
        elif what == "rank":
            failed = len(events.all("attempt_failed"))
            os.kill(events.ranks()[0], signal.SIGKILL)
            began = time.monotonic()
            events.wait("attempt_failed", failed + 1)
        else:
            attempts = len(events.all("attempt_started"))
            driver.kill()
            driver.wait()
            began = time.monotonic()
            driver = start_driver(job, 1)
            events.wait("attempt_started", attempts + 1)
        events.wait_for_a_step()
        killed.append((what, round(time.monotonic() - began, 1)))
    assert driver.wait(timeout=900) == 0, driver.stderr.read()
    assert read_stored_batches(job) == read_stored_batches(straight)
    assert_equal(job, straight)
    spent = vars(progress.measure_goodput(job.folder))
    write_result(
        "rl_kills.json",
        {
            "kills_and_seconds_to_the_next_step": killed,
            "seed": seed,
            "steps": steps,
            "byte_equal": True,
            "seconds": {name: round(value, 1) for name, value in spent.items()},
        },
    )
