"""Cost of a run's metrics.

CPU seconds of blocks of steps with all default metrics alternate with blocks without metrics or
logs, in one run. The kernels, bytes and waits of a step are counted.
"""

import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import pytest
from support.step_counts import compute_added_share, count_work, make_shape

from trainrig.train import loop
from trainrig.train.held_out_loss import Metrics
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_logger import StepLogger

TESTS = Path(__file__).parents[1]

pytestmark = [pytest.mark.bench, pytest.mark.timeout(7200)]
DEFAULTS = Metrics()
BLOCK = DEFAULTS.every  # steps, one of which samples
# Steps of a round. Half of its blocks have all metrics, and one of those measures by layer.
ROUND = 2 * DEFAULTS.layers_every
ROUNDS = 20
MOST = 0.01
MOST_BOUND = 0.03


def is_measured(step):
    """Return whether update number `step`, counted from 1, belongs to a block with metrics.

    One block with metrics comes before two blocks without, and one after them.
    """
    return (step - 1) // BLOCK % 4 in (0, 3)


class AlternatingMetrics(Metrics):
    """Default metrics in every other block."""

    def due(self, step):
        return is_measured(step) and super().due(step)

    def layers_due(self, step):
        return is_measured(step) and step % ROUND == BLOCK


class AlternatingLogger(StepLogger):
    """A step logger that writes nothing about steps that are not measured."""

    def log_step(self, local, figures, clock):
        if is_measured(self._state.step):
            super().log_step(local, figures, clock)


class CPUSeconds:
    """A supervisor that records the CPU seconds used up to each step."""

    def __init__(self):
        self.before = {}

    def heartbeat(self, step, doing):
        if step not in self.before:
            self.before[step] = time.process_time()

    def stop_wanted(self):
        return False


def compute_added_shares(before):
    """Return the relative cost of the blocks with metrics in each round, and the mean step time."""
    steps = np.array([before[at + 1] - before[at] for at in range(ROUNDS * ROUND)])
    measured = np.array([is_measured(at + 1) for at in range(ROUNDS * ROUND)])
    with_all, without = (
        np.where(chosen, steps, 0).reshape(ROUNDS, ROUND).sum(1) for chosen in (measured, ~measured)
    )
    assert measured.sum() * 2 == len(measured)
    return with_all / without - 1, steps.mean()


def test_measuring_costs_little_cpu_time(alone, tmp_path, monkeypatch, write_result, make_job):
    """Measure the CPU time and keep it in results/metrics-cost.json."""
    monkeypatch.setattr(loop, "StepLogger", AlternatingLogger)
    steps = ROUNDS * ROUND + 1
    job = make_job(
        tmp_path / "run",
        model={"layers": 4, "channels": 128, "heads": 4, "kv_heads": 4, "positions": 128},
        batches={"sequence_length": 128, "global_batch": 8, "micro_batch": 2, "epochs": 1e6},
        training={"steps": steps, "held_out": {"rows": 0}, "checkpoints": {"every": steps}},
    )
    assert job.training.metrics == Metrics()
    training = job.training.model_copy(update={"metrics": AlternatingMetrics()})
    job = dataclasses.replace(job, training=training)
    seconds = CPUSeconds()
    loop.train(job, RunFolder(job.folder).take_attempt(0), None, seconds)
    logged = metrics.read_series(job.folder)
    assert [line["step"] for line in logged] == [s for s in range(1, steps + 1) if is_measured(s)]
    assert sum("noise/trace" in line for line in logged) == ROUNDS * ROUND // BLOCK // 2
    assert sum("layers/00/grad_norm" in line for line in logged) == ROUNDS
    shares, step_seconds = compute_added_shares(seconds.before)
    drawn = np.random.default_rng(0).choice(shares, (10_000, len(shares)))
    low, high = np.quantile(drawn.mean(1), [0.025, 0.975])
    found = {}
    for layers, micro_batch in ((4, 1), (4, 8), (12, 1), (12, 8)):
        folder = tmp_path / f"{layers}-{micro_batch}"
        counts = count_work(make_job, folder, monkeypatch, **make_shape(layers, micro_batch))
        plain = counts["plain"]
        found[f"{layers} layers, {8 // micro_batch} micro-batches"] = {
            **{w: round(compute_added_share(counts, w), 5) for w in ("kernels", "bytes", "waits")},
            "kernels_of_the_table_of_losses": round(plain["table"] / plain["kernels"], 5),
        }
    result = {
        "cpu_seconds_added": round(float(shares.mean()), 5),
        "interval_95": [round(float(low), 5), round(float(high), 5)],
        "rounds_from_to": [round(float(shares.min()), 5), round(float(shares.max()), 5)],
        "rounds": ROUNDS,
        "steps_of_a_round": ROUND,
        "cpu_seconds_of_a_step": round(float(step_seconds), 4),
        "counted": found,
    }
    print(json.dumps(result))
    write_result("metrics-cost.json", result)
    assert high <= MOST_BOUND
    for costs in found.values():
        assert max(costs[what] for what in ("kernels", "bytes", "waits")) <= MOST
