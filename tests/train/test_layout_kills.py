"""Ten kills of ranks in each layout, with one and two replicas in turn: no bit changes."""

import dataclasses
import random
import time

import numpy as np
import pytest
from support.attempts import go_on

from trainrig.parallel.layout import FSDP
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import read_trained_samples

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
KILLS = 10
STEPS = 33
EXPERTS = {"feedforward": {"kind": "MixtureOfExperts", "experts": 4, "active": 2}}
LAYOUTS = {
    "tensor": (FSDP(tensor={"ranks": 2}), {}),
    "tensor in places": (FSDP(tensor={"ranks": 2, "sequence_parallel": True}), {}),
    "pipeline": (FSDP(pipeline={"ranks": 2}), {}),
    "context": (FSDP(context={"kind": "Gathered", "ranks": 2}), {}),
    "ring of context": (FSDP(context={"kind": "RingAttention", "ranks": 2}), {}),
    "expert": (FSDP(expert={"ranks": 2}), EXPERTS),
    "pipeline of context": (
        FSDP(pipeline={"ranks": 2}, context={"kind": "Gathered", "ranks": 2}),
        {},
    ),
    "pipeline of experts": (FSDP(pipeline={"ranks": 2}, expert={"ranks": 2}), EXPERTS),
}
MODEL = {"layers": 2, "channels": 32, "heads": 4, "kv_heads": 2, "positions": 48}
BATCHES = {"global_batch": 16, "micro_batch": 4, "attend": "document", "epochs": 1e6}


def read_losses(job, name="train/loss"):
    return [line[name] for line in metrics.read_series(job.folder)]


def read_whole(ranks, job):
    """Return all tensors of the last checkpoint, as one process reads them."""
    found, _ = find_newest_valid(RunFolder(job.folder))
    assert found.step == STEPS
    training = job.training.model_copy(update={"parallel": FSDP()})
    plain = dataclasses.replace(job, training=training)
    return ranks(1, "tensors", job=plain, resume_from=found.path)[0]


def test_ten_kills_in_each_layout_cost_no_bit(
    make_job, ranks, mortal_ranks, write_result, tmp_path
):
    """Figures go to results/layout_kills.json."""
    seed = int(time.time())
    dice = random.Random(seed)
    found = {}
    for name, (layout, changes) in LAYOUTS.items():
        training = {
            "steps": STEPS,
            "parallel": layout.model_dump(),
            "checkpoints": {"every": 2, "keep": 2},
            "held_out": {"rows": 8, "every": 11},
        }
        folder = tmp_path / name.replace(" ", "-")
        one = layout.replica
        straight = make_job(
            folder / "straight", one, model=MODEL | changes, batches=BATCHES, training=training
        )
        go_on(straight, one, ranks)
        (folder / "run").mkdir()
        job = dataclasses.replace(straight, folder=str(folder / "run"))
        kills = []
        for number in range(KILLS):
            world = (one, 2 * one)[number % 2]
            fault = (dice.randrange(world), "die", 3 * number + dice.randrange(1, 4))
            go_on(job, world, mortal_ranks, fault)
            kills.append({"of": world, "rank": fault[0], "at_step": fault[2]})
        go_on(job, one, mortal_ranks)
        attempts = RunFolder(job.folder).read_attempts()
        assert len(attempts) == KILLS + 1 and attempts[-1].resumed_step > STEPS / 2
        assert read_losses(job) == read_losses(straight)
        assert read_losses(job, "train/grad_norm") == read_losses(straight, "train/grad_norm")
        assert read_trained_samples(RunFolder(job.folder)) == read_trained_samples(
            RunFolder(straight.folder)
        )
        tensors = read_whole(ranks, job)
        expected = read_whole(ranks, straight)
        assert tensors.keys() == expected.keys()
        for tensor, value in tensors.items():
            np.testing.assert_array_equal(value, expected[tensor], err_msg=f"{name}: {tensor}")
        found[name] = kills
        print(name, flush=True)
    write_result(
        "layout_kills.json", {"seed": seed, "steps": STEPS, "byte_equal": True, "kills": found}
    )
