"""Speedup from a second worker, and the cost of bit-identical results at any worker count.

The model has 10.7M parameters; a global batch is 32 x 256 tokens in 4 micro-batches, in float32,
one thread per worker. The two sides of a ratio alternate, so that the machine's load affects both
alike.
"""

import json
import os
import pickle
import statistics

import pytest

pytestmark = pytest.mark.bench
MODEL = {"layers": 6, "channels": 384, "heads": 6, "vocabulary": 128, "positions": 256}
MICRO_BATCHES = 4
SHAPE = (8, 256)
TOKENS = MICRO_BATCHES * SHAPE[0] * SHAPE[1]
ROUNDS = int(os.environ.get("TRAINRIG_REPEATS", "11"))
STEPS = 1


def measure_seconds(ranks, world, **training):
    """Return median wall and CPU seconds of a step; CPU seconds are summed over all workers."""
    return compute_medians(ranks(world, "pace", **make_arguments(training, MICRO_BATCHES)))


def measure_independent_seconds(pools, **training):
    """Return the same figures for independent workers that each take an equal part of the batch."""
    share = make_arguments(training, MICRO_BATCHES // len(pools))
    started = [process for pool in pools for process in pool.start(1, "pace", **share)]
    answers = [pickle.load(process.stdout) for process in started]
    assert all(fine for fine, _ in answers)
    return compute_medians([answer for _, answer in answers])


def make_arguments(training, count):
    return dict(model=MODEL, training=training, count=count, shape=SHAPE, steps=STEPS)


def compute_medians(answers):
    walls = [max(answer[step][0] for answer in answers) for step in range(STEPS)]
    cpus = [sum(answer[step][1] for answer in answers) for step in range(STEPS)]
    return statistics.median(walls), statistics.median(cpus)


def compare(name, one, other):
    """Print and return the medians over rounds of `one`'s wall and CPU seconds over `other`'s."""
    pairs = [(one(), other()) for _ in range(ROUNDS)]
    walls = sorted(a[0] / b[0] for a, b in pairs)
    cpus = sorted(a[1] / b[1] for a, b in pairs)
    result = {
        "benchmark": name,
        "tokens_per_second": [
            round(TOKENS / statistics.median(pair[side][0] for pair in pairs)) for side in (0, 1)
        ],
        "wall_ratio": round(statistics.median(walls), 3),
        "wall_ratio_from_to": [round(walls[0], 3), round(walls[-1], 3)],
        "cpu_ratio": round(statistics.median(cpus), 3),
        "cpu_ratio_from_to": [round(cpus[0], 3), round(cpus[-1], 3)],
        "rounds": ROUNDS,
    }
    print(json.dumps(result))
    return result


def test_two_independent_workers_show_the_limit_of_the_machine(ranks, mortal_ranks):
    """Measure the machine's own limit: two cores share caches, memory and more."""
    result = compare(
        "one worker over two that know nothing of each other",
        lambda: measure_seconds(ranks, 1, virtual_workers=1),
        lambda: measure_independent_seconds([ranks, mortal_ranks], virtual_workers=1),
    )
    assert 1 < result["wall_ratio"] < 2.2


@pytest.mark.parametrize("deterministic", [True, False])
def test_two_workers_are_nearly_twice_as_fast_as_one(deterministic, ranks):
    settings = {"deterministic": deterministic, "virtual_workers": 2}
    result = compare(
        f"one worker over two, deterministic: {deterministic}",
        lambda: measure_seconds(ranks, 1, **settings),
        lambda: measure_seconds(ranks, 2, **settings),
    )
    assert result["wall_ratio"] >= 1.8


@pytest.mark.parametrize(("world", "virtual", "most"), [(2, 2, 1.05), (1, 4, 1.15)])
def test_the_same_bits_at_any_number_of_workers_are_cheap(world, virtual, most, ranks):
    result = compare(
        f"deterministic over fast, {world} workers for {virtual} virtual ones",
        lambda: measure_seconds(ranks, world, deterministic=True, virtual_workers=virtual),
        lambda: measure_seconds(ranks, world, deterministic=False),
    )
    assert result["wall_ratio"] <= most
