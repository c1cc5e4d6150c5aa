"""Cost of checkpoints for a run of 10M parameters and of 10 times as many.

One rank runs in this process on one thread. If the machine has a core to spare, the saving thread
competes with the steps only for memory bandwidth and the interpreter's lock.
"""

import json
import statistics
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from trainrig.models.decoder import DecoderConfig, count_parameters
from trainrig.parallel.mesh import find_local_device, join_group
from trainrig.train.checkpoint import Saver, find_newest_valid, load
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.training_settings import Training
from trainrig.train.state import build_fresh_state
from trainrig.train.training_job import TrainingJob

pytestmark = pytest.mark.bench
SIZES = {
    "10M": {"layers": 6, "channels": 384, "heads": 6, "kv_heads": 6, "vocabulary": 512},
    "100M": {"layers": 14, "channels": 768, "heads": 12, "kv_heads": 12, "vocabulary": 512},
}
ROUNDS = 5
STEPS = 4  # steps taken while one checkpoint is written


class NoData:
    """Batches that have a read position and no data."""

    def data_before(self, step):
        return {"made up": True}


@pytest.fixture
def alone(tmp_path):
    torch.set_num_threads(1)
    join_group(0, 1, f"file://{tmp_path}/store", timedelta(minutes=5))
    yield
    dist.destroy_process_group()


def make_job(size, folder):
    model = DecoderConfig(positions=256, **SIZES[size])
    training = Training(steps=10_000, checkpoints={"every": 100})
    return TrainingJob(
        folder=str(folder), model=model, training=training, make_batches=NoData, tokenizer="{}"
    )


def report(**figures):
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}))


def seconds(action):
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


@pytest.mark.parametrize("size", SIZES)
def test_a_run_waits_for_a_checkpoint_no_longer_than_for_a_copy(alone, tmp_path, size):
    job = make_job(size, tmp_path)
    folder = RunFolder(job.folder)
    state = build_fresh_state(job, find_local_device())
    saver = Saver(folder, folder.take_attempt(0), job, NoData())
    rounds = ROUNDS if size == "10M" else 3
    for step in range(1, rounds + 1):
        state.step = state.data_step = step
        saver.save(state)
        saver.finish()
    events = [event for event in folder.read_events() if event["event"] == "checkpoint"]
    megabytes = events[0]["bytes"] / 1e6
    newest, _ = find_newest_valid(folder)
    reads = [seconds(lambda: load(newest.path, state, job, NoData())) for _ in range(rounds)]
    whole = [seconds(lambda: find_newest_valid(folder)) for _ in range(rounds)]
    cheap = [seconds(lambda: find_newest_valid(folder, thorough=False)) for _ in range(rounds)]
    stalls = [event["stall_seconds"] for event in events]
    report(
        benchmark=f"checkpoint of {size} parameters, one rank",
        parameters=count_parameters(job.model).total,
        megabytes=megabytes,
        first_stall_seconds=stalls[0],  # the first save allocates the staging memory
        stall_seconds=statistics.median(stalls[1:]),
        worst_stall_seconds=max(stalls[1:]),
        seconds_in_all=statistics.median(event["seconds"] for event in events),
        load_megabytes_per_second=megabytes / statistics.median(reads),
        check_megabytes_per_second=megabytes / statistics.median(whole),
        cheap_check_seconds=statistics.median(cheap),
        rounds=rounds,
    )
    assert megabytes / statistics.median(reads) > 100  # fewer would be a regression on any machine
    assert statistics.median(stalls[1:]) < 0.5 * megabytes / 120


def test_steps_continue_while_a_checkpoint_is_written(alone, tmp_path):
    """Alternate a few steps that follow a save with a few that do not."""
    job = make_job("10M", tmp_path)
    folder = RunFolder(job.folder)
    state = build_fresh_state(job, find_local_device())
    saver = Saver(folder, folder.take_attempt(0), job, NoData())
    ids = torch.randint(0, 512, (1, 257))

    def step():
        logits = state.model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.step += 1
        state.data_step = state.step

    def steps(save):
        if save:
            saver.save(state)
        took = seconds(lambda: [step() for _ in range(STEPS)])
        saver.finish()
        return took

    steps(True)
    turns = [(steps(False), steps(True)) for _ in range(ROUNDS)]
    events = [event for event in folder.read_events() if event["event"] == "checkpoint"][1:]
    plain = statistics.median(a for a, _ in turns) / STEPS
    writing = statistics.median(event["seconds"] for event in events)
    slower = sorted(b / a for a, b in turns)
    extra = statistics.median(b - a for a, b in turns)
    stall = statistics.median(event["stall_seconds"] for event in events)
    report(
        benchmark=f"{STEPS} steps of 10M parameters during a save, over as many without",
        step_seconds=plain,
        ratio=statistics.median(slower),
        ratio_from_to=[round(slower[0], 3), round(slower[-1], 3)],
        # This is the slowdown of the steps that ran during the write; other steps were not
        # disturbed.
        slowdown_while_writing=extra / max(writing, 1e-9),
        stall_seconds=stall,
        # At the default interval of 100 steps, this is all that a run loses to checkpoints.
        share_of_wall_at_the_default_interval=(stall + max(extra, 0.0)) / (100 * plain),
        stall_share_at_the_default_interval=stall / (100 * plain),
        rounds=ROUNDS,
    )
    assert stall < 0.01 * 100 * plain
