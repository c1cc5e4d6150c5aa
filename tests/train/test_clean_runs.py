"""Long runs on real pages without faults: no step is an outlier, and no alarm is raised."""

import json
from pathlib import Path

import pytest

from trainrig.train.elastic import trainer
from trainrig.train.pretrain import prepare
from trainrig.train.run import metrics
from trainrig.train.run.alarm_rules import AlarmRules
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.spikes import SpikeDetector, Spikes

pytestmark = [pytest.mark.soak, pytest.mark.data, pytest.mark.timeout(7200)]
SEEDS = (0, 1, 2)
STEPS = 10_000
LENGTH = 64
ROWS = 8
# The last of each are the defaults; the others show how many outliers a stricter one finds.
DEVIATIONS = {"loss": (3.0, 4.0, 5.0, 7.0, 10.0), "gradient norm": (3.0, 5.0, 7.0, 10.0, 20.0)}
NEVER = 1e9
# The speed of a step depends on the other load of the machine.
OF_THE_MACHINE = {"throughput_falls", "slow_worker"}


def run_file(tokens: str, output: Path, seed: int) -> Pretraining:
    return Pretraining.model_validate(
        {
            "tokens": tokens,
            "output": str(output),
            "model": {"layers": 2, "channels": 64, "heads": 4, "positions": LENGTH},
            "batches": {
                "sequence_length": LENGTH,
                "global_batch": ROWS,
                "micro_batch": ROWS,
                "seed": seed,
                "epochs": 4.0,
            },
            "training": {
                "steps": STEPS,
                "seed": seed,
                "virtual_workers": 1,
                "optimizer": {"kind": "AdamW", "lr": 0.003},
                "schedule": {"kind": "Cosine", "warmup": 500},
                "held_out": {"every": 1_000, "rows": 64},
                "checkpoints": {"every": 2_500},
                "spikes": {},
            },
        }
    )


def count_outliers(lines: list[dict[str, float]], **deviations: float) -> int:
    """Count the steps of a recorded series that a detector of these settings finds."""
    margins = {"loss_deviations": NEVER, "norm_deviations": NEVER, **deviations}
    detector = SpikeDetector(Spikes(**margins))
    found = 0
    for line in lines:
        step = int(line["step"])
        found += detector.observe(step, line["train/loss"], line["train/grad_norm"]) is not None
        detector.find_spike()
    return found


def list_alarms(folder: str) -> set[str]:
    """Return the names of alarms that held after any line of a run."""
    rules = AlarmRules(STEPS)
    held = set()
    for raw in Path(folder, metrics.METRICS).read_text().splitlines():
        rules.hear(json.loads(raw))
        held |= {alarm.name for alarm in rules.list_holding(None)}
    return held - OF_THE_MACHINE


@pytest.mark.parametrize("seed", SEEDS)
def test_a_clean_run_raises_no_alarm(seed, crawl_tokens, tmp_path, without_ray, write_result):
    """Outlier counts for stricter margins go to results/clean_run_SEED.json."""
    job = prepare(run_file(crawl_tokens, tmp_path / "run", seed))
    Path(job.folder).mkdir(parents=True)
    trainer.run(job, 1)
    lines = metrics.read_series(job.folder)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    outliers = {
        "loss": {d: count_outliers(lines, loss_deviations=d) for d in DEVIATIONS["loss"]},
        "gradient norm": {
            d: count_outliers(lines, norm_deviations=d) for d in DEVIATIONS["gradient norm"]
        },
    }
    events = [event["event"] for event in RunFolder(job.folder).read_events()]
    held_out = [round(line["eval/loss"], 3) for line in metrics.read_held_out_series(job.folder)]
    alarms = sorted(list_alarms(job.folder))
    sizes = {"steps": STEPS, "rows": ROWS, "sequence_length": LENGTH}
    found = {"held_out": held_out, "outliers": outliers, "alarms": alarms}
    print(json.dumps(found), flush=True)
    write_result(f"clean_run_{seed}.json", {**sizes, "seed": seed, **found})
    assert not {"step_skipped", "spike"} & set(events)
    defaults = Spikes()
    assert outliers["loss"][defaults.loss_deviations] == 0
    assert outliers["gradient norm"][defaults.norm_deviations] == 0
    assert not alarms
    # It learns throughout, so the absence of alarms means something.
    assert held_out[-1] == min(held_out) < held_out[0]
    # A damaged step in the same series is found.
    spoilt = [dict(line) for line in lines]
    spoilt[5_000]["train/loss"] *= 2
    assert count_outliers(spoilt, loss_deviations=defaults.loss_deviations) == 1
