"""Ray's share of a step: CPU seconds of all processes except the ranks, compared with the ranks.

The model has about 10M parameters on two workers of one thread each, as in test_data_parallel.py.
Ray's server, raylet and agents, the worker agents, the coordinator and this supervising driver
share two cores with the ranks. Their CPU time delays a step, and unlike the step's wall time it can
be separated from the noise of a machine.
"""

import contextlib
import json
import os
import re
import statistics
import time
from pathlib import Path

import psutil
import pytest
from support import faults

from trainrig.train.elastic import trainer
from trainrig.train.run.metrics import METRICS

pytestmark = [pytest.mark.bench, pytest.mark.ray, pytest.mark.timeout(1800)]
ROUNDS = int(os.environ.get("TRAINRIG_REPEATS", "5"))
STEPS = 10  # steps of each round, the first two of which are not counted
NOT_COUNTED = 2


def read_cpu_seconds():
    """Return the name and CPU seconds of this process and its descendants, keyed by pid."""
    me = psutil.Process()
    found = {}
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # a process may just have ended
            times = process.cpu_times()
            name = "driver" if process == me else name_process(process.cmdline())
            found[process.pid] = name, times.user + times.system
    return found


def name_process(command):
    """Return the role of a Ray process: a worker's title, or the name of its program."""
    if command[0].startswith("ray::"):
        return re.split(r"[.(]", command[0])[0]
    scripts = [Path(part).name for part in command if part.endswith(".py")]
    return scripts[0] if scripts else Path(command[0]).name


def count_lines(path):
    """Count the lines of a file cheaply, as the cost of polling counts as well."""
    return path.read_bytes().count(b"\n")


def test_ray_takes_next_to_nothing_of_a_step(one_ray, make_job, tmp_path):
    def shares(name):
        job = make_job(
            tmp_path / name,
            model={"layers": 6, "channels": 384, "heads": 6, "kv_heads": 6, "positions": 256},
            batches={"sequence_length": 256, "global_batch": 16, "micro_batch": 8, "epochs": 1e6},
            training={"steps": STEPS, "held_out": {"rows": 0}, "virtual_workers": 2},
        )
        found = {}

        def measure():
            log = Path(job.folder, METRICS)
            faults.Events(job.folder).wait("first_step")
            while count_lines(log) < NOT_COUNTED:
                time.sleep(0.1)
            began = time.perf_counter()
            before = read_cpu_seconds()
            while count_lines(log) < STEPS - 1:
                time.sleep(0.5)
            after = read_cpu_seconds()
            found["seconds"] = time.perf_counter() - began
            ranks = set(faults.Events(job.folder).ranks().values())
            for pid in after.keys() & before.keys():
                name = after[pid][0]
                spent = after[pid][1] - before[pid][1]
                found.setdefault("rank" if pid in ranks else name, 0.0)
                found["rank" if pid in ranks else name] += spent

        aside = faults.Aside(measure)
        trainer.run(job, 2)
        aside.end()
        return found

    rounds = [shares(f"run-{number}") for number in range(ROUNDS)]
    spent = [{name: of for name, of in seconds.items() if name != "seconds"} for seconds in rounds]
    share = sorted(1 - seconds["rank"] / sum(seconds.values()) for seconds in spent)
    a_second = {
        name: round(statistics.median(r.get(name, 0.0) / r["seconds"] for r in rounds), 4)
        for name in sorted({name for seconds in spent for name in seconds})
    }
    result = {
        "benchmark": "CPU seconds of all but the ranks, of those of a step of 10.7M parameters",
        "share": round(statistics.median(share), 4),
        "share_from_to": [round(share[0], 4), round(share[-1], 4)],
        "cpu_seconds_a_second": a_second,
        "step_seconds": round(
            statistics.median(r["seconds"] / (STEPS - 1 - NOT_COUNTED) for r in rounds), 3
        ),
        "rounds": ROUNDS,
    }
    print(json.dumps(result))
    assert result["share"] < 0.01
