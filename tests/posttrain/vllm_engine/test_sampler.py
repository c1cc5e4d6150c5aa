"""Rollouts sampled by a replacement of vLLM: it always has the current weights."""

import contextlib
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from trainrig.models.decoder import Decoder
from trainrig.rl.reinforcement_stage import prepare
from trainrig.train import checkpoint
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import list_stored_batches

FAST = {"deterministic": False}


def run_of(make_run, folder, **rollouts):
    return make_run(folder, rollouts={"actors": 1, **rollouts}, training=FAST)


def test_the_sampler_uses_the_current_weights(vllm, make_run, fresh, tmp_path):
    ours, theirs = (
        prepare(run_of(make_run, tmp_path / name, **changes))[0].make_batches()
        for name, changes in (("ours", {}), ("theirs", {"vllm": {"memory": 0.4}}))
    )
    model: Decoder = checkpoint.open_model(fresh).build()
    loaded = vllm.LLM.loaded
    for number in range(2):
        with torch.no_grad():
            for index in (0, 1):
                made = [sampler.sample(model, number, index) for sampler in (ours, theirs)]
                for name, expected in made[0].items():
                    np.testing.assert_array_equal(made[1][name], expected, err_msg=name)
            model.norm.weight.mul_(3)
        theirs.take_weights()
    assert vllm.LLM.loaded - loaded == 2  # once for each version of the weights, not for each unit


@contextlib.contextmanager
def start_actor(pool, job, imports):
    """Start an actor that samples for `job` meanwhile, with imports from a folder."""
    with tempfile.TemporaryDirectory() as folder:
        until = Path(folder, "enough")
        (process,) = pool.start(1, "sample_for", job=job, until=str(until), imports=imports)
        try:
            yield
        finally:
            until.touch()
            fine, answer = pickle.load(process.stdout)
        assert fine, answer


@pytest.mark.slow
def test_a_run_is_trained_on_what_it_samples(make_run, ranks, revived_ranks, stand_in, tmp_path):
    found = []
    for name, vllm in (("ours", None), ("theirs", {"memory": 0.4})):
        job, _, _ = prepare(run_of(make_run, tmp_path / name, vllm=vllm))
        with start_actor(revived_ranks, job, stand_in if vllm else ""):
            ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
        batches = list_stored_batches(RunFolder(job.folder))
        found.append(
            [
                (batch.number, index, Path(batch.folder, file["name"]).read_bytes())
                for batch in batches
                for index, file in enumerate(batch.files)
            ]
        )
    assert len(found[0]) == 3 * 2
    assert found[1] == found[0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"training": {}}, "set training.deterministic = false"),
        ({"rollouts": {"vllm": {}}, "training": FAST}, r"set rollouts.actors.*1 or"),
        ({"lora": {"rank": 2}, "training": FAST}, "vLLM loads whole models"),
    ],
)
def test_unsupported_settings_are_rejected(changes, told, make_run, tmp_path):
    with pytest.raises(ValidationError, match=told):
        make_run(tmp_path / "run", **{"rollouts": {"actors": 1, "vllm": {}}, **changes})
