"""What Ray takes of a step: the same job by Ray's workers and by bare processes, in turns.

About 10M parameters on two workers of one thread each, as in test_data_parallel.py; the loop, its
records and its beats are all there in both, only who started the ranks and hears them differs.
"""

import json
import os
import runpy
import statistics
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parents[1] / "chaos"
sys.path.insert(0, str(CHAOS))
globals().update(runpy.run_path(str(CHAOS / "conftest.py")))

from trainrig.train import metrics, trainer  # noqa: E402
from trainrig.train.run_folder import RunFolder  # noqa: E402

pytestmark = [pytest.mark.bench, pytest.mark.ray, pytest.mark.timeout(1800)]
ROUNDS = int(os.environ.get("TRAINRIG_REPEATS", "5"))
STEPS = 8  # of each, the first of which is not counted


def test_ray_takes_next_to_nothing_of_a_step(one_ray, ranks, make_job, tmp_path):
    def job(name):
        return make_job(
            tmp_path / name,
            model={"layers": 6, "channels": 384, "heads": 6, "kv_heads": 6, "positions": 256},
            batches={"sequence_length": 256, "global_batch": 16, "micro_batch": 8, "epochs": 1e6},
            training={"steps": STEPS, "held_out": {"rows": 0}, "virtual_workers": 2},
        )

    def pace(job):
        steps = [line["speed/step_seconds"] for line in metrics.series(job.folder)]
        return statistics.median(steps[1:])

    def on_ray(job):
        trainer.run(job, 2)
        return pace(job)

    def bare(job):
        ranks(2, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
        return pace(job)

    pairs = [(on_ray(job(f"ray-{n}")), bare(job(f"bare-{n}"))) for n in range(ROUNDS)]
    ratios = sorted(ray / plain for ray, plain in pairs)
    result = {
        "benchmark": "a step of 10.7M parameters by Ray's workers over one by bare processes",
        "step_seconds": [round(statistics.median(p[side] for p in pairs), 3) for side in (0, 1)],
        "ratio": round(statistics.median(ratios), 4),
        "ratio_from_to": [round(ratios[0], 4), round(ratios[-1], 4)],
        "rounds": ROUNDS,
    }
    print(json.dumps(result))
    assert result["ratio"] < 1.01
