"""Reinforcement learning that is killed and resumes with other workers gives the same results."""

import dataclasses
import json
import os
import signal

import pytest
from support import faults
from support.rollout_runs import read_stored_batches

from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.rl.reinforcement_run_file import ReinforcementLearning
from trainrig.rl.reinforcement_stage import prepare
from trainrig.tokens.special_tokens import TokenizerFiles
from trainrig.train.checkpoint import write_model
from trainrig.train.run.run_folder import RunFolder

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]


HELD = {"weight": 0.01, "estimator": "k1", "place": "reward", "adaptive": {"target": 0.1}}
PPO = {"kind": "PPO", "reference": HELD}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "objective",
    [{"kind": "DAPO", "reference": {"weight": 0.01}}, PPO],
    ids=lambda event: event["kind"],
)
def test_rollouts_and_weights_are_the_same_after_three_kills(
    objective, tokens, ranks, start_driver, assert_equal, tmp_path
):
    path = tmp_path / "prompts.jsonl"
    base = str(tmp_path / "base")
    rows = [{"prompt": f"the sea {n}"} for n in range(16)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = Decoder(DecoderConfig(layers=2, channels=64, heads=4, positions=128, vocabulary=320))
    initialise(model, seed=1)
    write_model(base, model.config, TokenizerFiles.read(tokens).tokenizer, model.state_dict())
    run = ReinforcementLearning.model_validate(
        {
            "checkpoint": base,
            "output": str(tmp_path / "straight"),
            "prompts": {"paths": (str(path),)},
            "rollouts": {
                **{"prompts": 4, "samples": 4, "micro_batch": 4},
                **{"prompt_tokens": 32, "maximum_tokens": 90},
            },
            "rewards": ({"kind": "PatternShape", "pattern": "e", "whole": False},),
            "objective": objective,
            "training": {
                "steps": 24,
                "optimizer": {"kind": "AdamW", "lr": 0.003},
                "checkpoints": {"every": 4, "keep": 2},
                "faults": {"hang_seconds": 10.0, "max_restarts": 9},
            },
        }
    )
    straight, _, _ = prepare(run)
    ranks(1, "train", job=straight, attempt=RunFolder(straight.folder).take_attempt(0))
    job = dataclasses.replace(straight, folder=str(tmp_path / "run"))
    events = faults.Events(job.folder)
    first = start_driver(job, 2)
    for failed, rank in ((1, 1), (2, 0)):
        events.wait_for_a_step()
        os.kill(events.ranks()[rank], signal.SIGKILL)
        events.wait("attempt_failed", failed)
    events.wait("checkpoint", len(events.all("checkpoint")) + 1)
    first.kill()
    first.wait()
    second = start_driver(job, 1)
    assert second.wait(timeout=300) == 0, second.stderr.read()
    assert len(events.all("attempt_failed")) >= 2
    assert events.folder.read_attempts()[-1].resumed_step >= 4
    assert read_stored_batches(job) == read_stored_batches(straight)
    assert_equal(job, straight)
