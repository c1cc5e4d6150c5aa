"""What Ray takes of a step: CPU seconds of all that is not a rank, beside those of the ranks.

About 10M parameters on two workers of one thread each, as in test_data_parallel.py. Ray's server,
raylet and agents, the keepers of the ranks, the post office and this driver, which supervises,
share two cores with the ranks: what they use is what a step waits for, and unlike the wall time of
one it can be told from the noise of a machine.
"""

import json
import os
import runpy
import statistics
import sys
import time
from pathlib import Path

import psutil
import pytest

CHAOS = Path(__file__).parents[1] / "chaos"
sys.path.insert(0, str(CHAOS))
globals().update(runpy.run_path(str(CHAOS / "conftest.py")))

from trainrig.train import metrics, trainer  # noqa: E402

pytestmark = [pytest.mark.bench, pytest.mark.ray, pytest.mark.timeout(1800)]
ROUNDS = int(os.environ.get("TRAINRIG_REPEATS", "5"))
STEPS = 10  # of each round, the first two of which are not counted
NOT_COUNTED = 2


def used(processes):
    """CPU seconds by process; one that has ended, or just begun, counts for nothing."""
    found = {}
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        found[process.pid] = times.user + times.system
    return found


def test_ray_takes_next_to_nothing_of_a_step(one_ray, make_job, chaos, tmp_path):
    def shares(name):
        job = make_job(
            tmp_path / name,
            model={"layers": 6, "channels": 384, "heads": 6, "kv_heads": 6, "positions": 256},
            batches={"sequence_length": 256, "global_batch": 16, "micro_batch": 8, "epochs": 1e6},
            training={"steps": STEPS, "held_out": {"rows": 0}, "virtual_workers": 2},
        )
        found = {}

        def measure():
            def steps():
                return len(metrics.series(job.folder))

            chaos.events(job.folder).wait("first_step")
            while steps() < NOT_COUNTED:
                time.sleep(0.01)
            me = psutil.Process()
            before, began = used([me, *me.children(recursive=True)]), time.perf_counter()
            while steps() < STEPS - 1:
                time.sleep(0.25)
            after = used([me, *me.children(recursive=True)])
            found["seconds"] = time.perf_counter() - began
            ranks = set(chaos.events(job.folder).ranks().values())
            took = {pid: after[pid] - before[pid] for pid in after.keys() & before.keys()}
            found["ranks"] = sum(spent for pid, spent in took.items() if pid in ranks)
            found["others"] = sum(spent for pid, spent in took.items() if pid not in ranks)

        aside = chaos.aside(measure)
        trainer.run(job, 2)
        aside.end()
        return found

    rounds = [shares(f"run-{number}") for number in range(ROUNDS)]
    share = sorted(each["others"] / (each["ranks"] + each["others"]) for each in rounds)
    a_second = [each["others"] / each["seconds"] for each in rounds]
    result = {
        "benchmark": "CPU seconds of all but the ranks, of those of a step of 10.7M parameters",
        "share": round(statistics.median(share), 4),
        "share_from_to": [round(share[0], 4), round(share[-1], 4)],
        "cpu_seconds_a_second": round(statistics.median(a_second), 4),
        "step_seconds": round(
            statistics.median(r["seconds"] / (STEPS - 1 - NOT_COUNTED) for r in rounds), 3
        ),
        "rounds": ROUNDS,
    }
    print(json.dumps(result))
    assert result["share"] < 0.01
