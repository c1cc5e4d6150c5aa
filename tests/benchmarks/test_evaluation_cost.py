"""Cost of a run's own evaluations: steps during an evaluation against the other steps.

Evaluations come at even distances and take a part of each interval, so both kinds of steps
alternate. With one worker of one thread, the evaluation has a core to itself; with two workers on
two cores, it has none.
"""

import os
import statistics
from pathlib import Path

import pytest

from trainrig.train.pretrain import pretrain
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

TESTS = Path(__file__).parents[1]

pytestmark = [pytest.mark.bench, pytest.mark.data, pytest.mark.timeout(1800)]
# Counts of evaluations and of steps.
EVALUATIONS = 5
EVERY = 60
NOT_COUNTED = 20  # steps at the start
LIMIT = 1.03  # with a free core


@pytest.mark.parametrize("workers", [1, 2])
def test_steps_during_an_evaluation(
    workers, make_run, local_ray, test_data, write_result, tmp_path
):
    model = {"layers": 4, "channels": 128, "heads": 4, "positions": 512}
    evaluation = {
        "name": "quick",
        "tasks": ("arc_easy",),
        "task_rows": str(test_data / "sets"),
        "every": EVERY,
    }
    training = {
        "steps": EVALUATIONS * EVERY,
        "threads": 1,
        "checkpoints": {"every": EVERY},
        "evaluations": (evaluation,),
    }
    folder = str(tmp_path / "run")
    often = {"epochs": {"web": 1000.0, "books": 1000.0}}  # the tokens are few, so they are repeated
    run = make_run(folder, workers=workers, model=model, batches=often, training=training)
    pretrain(run)
    events = RunFolder(folder).read_events()
    scored = [event for event in events if event["event"] == "evaluated"]
    spans = [(event["time"] - event["seconds"], event["time"]) for event in scored]
    lines = metrics.read_series(folder)
    saved = {event["step"] for event in events if event["event"] == "checkpoint"}
    # (number of an evaluation, seconds of a step) during the evaluation, and after it.
    during = []
    alone = []
    for line in lines[NOT_COUNTED:]:
        end = line["time"]
        seconds = line["train/step_seconds"]
        if {line["step"], line["step"] - 1} & saved:
            continue
        over = [number for number, (_, last) in enumerate(spans) if last < end - seconds]
        within = [
            n for n, (first, last) in enumerate(spans) if first < end - seconds and end < last
        ]
        touched = any(first < end and end - seconds < last for first, last in spans)
        if within:
            during.append((within[0], seconds))
        elif over and not touched:
            alone.append((over[-1], seconds))
    ratios = []
    for number in range(len(spans)):
        pair = [[s for n, s in kind if n == number] for kind in (during, alone)]
        if min(map(len, pair)) >= 5:
            ratios.append(statistics.median(pair[0]) / statistics.median(pair[1]))
    found = {
        "workers": workers,
        "cores": os.cpu_count(),
        "steps_beside": len(during),
        "steps_alone": len(alone),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in sorted(ratios)],
    }
    print(found)
    write_result(f"evaluation-cost-{workers}.json", found)
    assert len(ratios) >= 2
    if workers < (os.cpu_count() or 1):
        assert found["ratio"] <= LIMIT
