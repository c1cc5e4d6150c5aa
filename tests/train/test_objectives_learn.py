"""Objectives that corrupt rows teach: below the entropy of single tokens, and not of targets that
were shuffled."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest

from trainrig.parallel.mesh import local_device
from trainrig.tokens.batches import IGNORE, TARGETS, read_local_batch
from trainrig.train.state import fresh_state
from trainrig.train.step import Stepper

STEPS = 400
DECODER = {"layers": 2, "channels": 64, "heads": 4, "kv_heads": None, "positions": 64}
OBJECTIVES = {
    "FillInTheMiddle": DECODER,
    "SpanCorruption": DECODER | {"kind": "EncoderDecoder", "feedforward_channels": 128},
}


def shuffled(micro, step):
    """`micro` with the targets of all its rows dealt anew."""
    targets = micro.targets.copy()
    kept = targets != IGNORE
    targets[kept] = np.random.default_rng((step, *micro.samples)).permutation(targets[kept])
    return dataclasses.replace(micro, arrays={**micro.arrays, TARGETS: targets})


def losses_of(job, batches, shuffle):
    state = fresh_state(job, local_device())
    stepper = Stepper(job, batches.sources, state, lambda: False)
    losses = []
    for step in range(STEPS):
        local = read_local_batch(batches, 0, 1, step, virtual=8)
        if shuffle:
            dealt = [(shuffled(micro, step), real) for micro, real in local.assigned]
            local = dataclasses.replace(local, assigned=dealt)
        losses.append(stepper.take(local).loss.total)
    return float(np.mean(losses[-20:]))


@pytest.mark.soak
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_a_small_run_learns_and_its_control_does_not(
    kind, alone, make_job, corrupted_tokens, tmp_path, write_result
):
    found = []
    for seed in range(3):
        training = {"steps": STEPS, "seed": seed, "spikes": None, "schedule": {"kind": "Constant"}}
        job = make_job(
            tmp_path / str(seed),
            tokens=corrupted_tokens,
            model=OBJECTIVES[kind],
            objective={"kind": kind, "corruption_seed": seed},
            batches={"sequence_length": 64, "micro_batch": 8, "seed": seed, "epochs": 1000},
            training=training,
        )
        batches = job.make_batches()
        counts = Counter(
            token
            for step in range(50)
            for micro in batches.at(step)
            for token in micro.targets[micro.targets != IGNORE].tolist()
        )
        total = sum(counts.values())
        unigram = -sum(n / total * math.log(n / total) for n in counts.values())
        learnt, control = (losses_of(job, batches, shuffle) for shuffle in (False, True))
        found.append({"seed": seed, "unigram": unigram, "learnt": learnt, "control": control})
        assert learnt < unigram - 0.5
        assert control > unigram - 0.25
    write_result(f"learn_{kind}.json", {"steps": STEPS, "runs": found})
