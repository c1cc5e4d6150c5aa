"""What reinforcement learning teaches small models of sums, and what it does not; figures are in
`results`.

Each start is the first checkpoint of tuning that gets about half of the held-out sums right.
"""

import json

import pytest

from trainrig.train.run import metrics

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]
SEEDS = (0, 1, 2)
TUNED, STEPS = 1000, 300
RIGHT = {"kind": "ExactAnswer", "column": "completion"}


def begin(bench, seed):
    """The name of a model that gets about half of the sums right, and the share."""
    fresh, tuned = f"fresh-{seed}", f"tuned-{seed}"
    bench.model(fresh, 128, 10 + seed)
    bench.tune(tuned, fresh, TUNED, seed=seed, keep_every=20)
    for step in range(200, TUNED + 1, 20):
        name = f"{tuned}/checkpoints/step_{step:08d}"
        share, _ = bench.exact(name)
        print(json.dumps({"seed": seed, "step": step, "exact": share}), flush=True)
        if share >= 0.45:
            return name, share
    raise AssertionError(f"seed {seed}: {share} right after {TUNED} steps")


def taught(bench, name, start, seed, steps=STEPS, **changes):
    """What a run made of `start`."""
    folder = bench.reinforce(name, start, steps, seed, **changes)
    lines = metrics.series(folder)
    some = max(1, steps // 10)

    def mean(of, part):
        return sum(line[f"train/diagnostics/{of}"] for line in part) / some

    found = {"exact": bench.exact(name)[0]}
    for when, part in (("first", lines[:some]), ("last", lines[-some:])):
        found |= {f"{of}_{when}": round(mean(of, part), 4) for of in ("reward", "entropy")}
    found["seconds_a_step"] = round((lines[-1]["time"] - lines[0]["time"]) / (steps - 1), 3)
    print(json.dumps({"run": name, **found}), flush=True)
    return found


OBJECTIVES = {
    "GRPO": {"objective": {"kind": "GRPO"}},
    "PPO": {
        "objective": {"kind": "PPO"},
        "critic": {"optimizer": {"kind": "AdamW", "lr": 1e-3, "weight_decay": 0.0}},
    },
}


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_a_policy_gets_better_by_what_its_answers_are_worth(kind, bench, write_result):
    found = []
    for seed in SEEDS:
        start, share = begin(bench, seed)
        each = taught(bench, f"{kind}-{seed}", start, seed, **OBJECTIVES[kind])
        found.append({"seed": seed, "start": share, **each})
    mean = sum(each["exact"] for each in found) / len(found)
    write_result(f"{kind.lower()}.json", {"steps": STEPS, "mean_exact": mean, "seeds": found})
    assert mean >= 0.70
    assert all(each["exact"] >= each["start"] + 0.12 for each in found)
