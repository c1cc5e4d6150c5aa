"""Alarms of runs that learn and of runs that are misled, on sums; figures are in `results`.

Each start is the first checkpoint of tuning that gets about half of the held-out sums right.
"""

import json

import pytest

from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

pytestmark = [pytest.mark.soak, pytest.mark.timeout(4 * 3600)]
TRAIN = "train/diagnostics/"
SHOWN = ("reward", "entropy", "distinct", "shared", "flat", "completion_tokens", "finished")
EXACT = {"kind": "ExactAnswer", "column": "completion"}
MEASURED = EXACT | {"weight": 0.0}
PPO = {
    "objective": {"kind": "PPO"},
    "critic": {"optimizer": {"kind": "AdamW", "lr": 1e-3, "weight_decay": 0.0}},
}
HELD = {"objective": {"kind": "GRPO", "reference": {"weight": 1.0, "estimator": "k3"}}}
# Bodies of rewards that no right answer explains.
BODIES = {
    "coin": "hashlib.sha256(f'{prompt}|{completion}'.encode()).digest()[0] < 128",
    "inverted": "-float(completion == row['completion'])",
    "length": "len(completion)",
    "sevens": "completion.count('7')",
}
# Name: rewards, seed, steps, other settings, alarms that must be raised, and none else.
RUNS = {
    "exact, seed 0": (None, 0, 200, {"warmup": 10}, set()),
    "inverted": ("inverted", 0, 60, {"warmup": 10}, {"reward_hacking"}),
    "length": ("length", 0, 60, {"warmup": 10}, {"reward_hacking", "length_growth"}),
    "sevens": ("sevens", 0, 100, {"warmup": 10}, {"reward_hacking", "policy_collapse"}),
    "coin, no reference": ("coin", 0, 200, {"lr": 1e-4}, {"policy_drift"}),
    "coin, held": ("coin", 0, 150, {"lr": 1e-4, **HELD}, set()),
    "constant": ("constant", 0, 60, {}, {"policy_collapse"}),
    "exact, PPO": (None, 0, 150, PPO, set()),
    "exact, two updates": (None, 0, 100, {"warmup": 10, "rollouts": {"updates": 2}}, set()),
    "exact, rate 1e-2": (None, 0, 60, {"lr": 1e-2, "warmup": 10}, {"policy_collapse"}),
    "exact, seed 1": (None, 1, 200, {"warmup": 10}, set()),
    "exact, seed 2": (None, 2, 200, {"warmup": 10}, set()),
}


def make_rewards(bench, kind):
    """Return the rewards of a run; those by `kind` are trained on, and right answers measured."""
    if kind is None:
        return (EXACT,)
    if kind == "constant":
        return ({"kind": "PatternShape", "pattern": "", "whole": False}, MEASURED)
    file = bench.folder / f"{kind}.py"
    file.write_text(
        "import hashlib\n\n\ndef reward(prompt, completion, row):\n"
        f"    return float({BODIES[kind]})\n"
    )
    return ({"kind": "PythonFunction", "name": kind, "file": str(file)}, MEASURED)


def summarise(lines):
    """Return the means of the first and of the last tenth of the lines."""
    tenth = max(1, len(lines) // 10)
    return {
        name: [
            round(sum(line[f"{TRAIN}{name}"] for line in part) / tenth, 4)
            for part in (lines[:tenth], lines[-tenth:])
        ]
        for name in SHOWN
    }


def test_alarms_name_what_misleads_a_policy_and_are_silent_while_it_learns(bench, write_result):
    starts = {}
    found = {}
    for name, (kind, seed, steps, changes, expected) in RUNS.items():
        if seed not in starts:
            starts[seed] = bench.tune_start(seed)
        start, share = starts[seed]
        at = name.replace(", ", "-").replace(" ", "-")
        folder = bench.reinforce(
            at, start, steps, seed, rewards=make_rewards(bench, kind), **changes
        )
        events = RunFolder(folder).read_events()
        found[name] = {
            "steps": steps,
            "exact": [share, bench.exact(at)[0]],
            **summarise(metrics.read_series(folder)),
            "expected": sorted(expected),
            "alarms": sorted({event["name"] for event in events if event["event"] == "alarm"}),
        }
        print(json.dumps({name: found[name]}), flush=True)
        write_result("alarms.json", found)
    assert {name: row["alarms"] for name, row in found.items()} == {
        name: row["expected"] for name, row in found.items()
    }
