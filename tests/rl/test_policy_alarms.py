"""Alarms of runs that learn and of runs that are misled; figures are in `results`.

The answer to `a or b=` is the larger of two digits. All runs start from the first checkpoint of
tuning that gets 45 or more of the 100 prompts right.
"""

import json
from typing import Any

import pytest

from trainrig.train.run import metrics
from trainrig.train.run.policy_alarms import PolicyRules, read_policy_facts
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
LEARNING = {"warmup": 10}
# Name: rewards, seed, steps, other settings, the alarms that must be raised, and others that fit.
# Those of the misled runs, except the constant reward, were set after a first look at these runs.
RUNS: dict[str, Any] = {
    "exact": (None, 0, 100, LEARNING, set(), set()),
    "inverted": ("inverted", 0, 60, LEARNING, {"reward_hacking"}, {"policy_collapse"}),
    "length": ("length", 0, 60, LEARNING, {"reward_hacking"}, {"length_growth", "policy_drift"}),
    "sevens": ("sevens", 0, 60, LEARNING, {"reward_hacking"}, {"policy_collapse", "length_growth"}),
    "constant": ("constant", 0, 20, {}, {"policy_collapse"}, set()),
    # With 100 prompts, a policy can learn which answers the coin prefers.
    "coin": (
        "coin",
        0,
        100,
        LEARNING,
        {"reward_hacking"},
        {"policy_drift", "policy_collapse"},
    ),
    "coin, held": ("coin", 0, 100, {"lr": 1e-4, **HELD}, set(), set()),
    "exact, seed 1": (None, 1, 100, LEARNING, set(), set()),
    "exact, PPO": (None, 0, 100, PPO, set(), set()),
    "exact, two updates": (None, 0, 100, {**LEARNING, "rollouts": {"updates": 2}}, set(), set()),
    # The reward is gone within ten batches, before there is a part to compare with.
    "exact, rate 1e-2": (None, 0, 60, {"lr": 1e-2}, {"policy_collapse"}, {"policy_drift"}),
    "exact, seed 2": (None, 2, 100, LEARNING, set(), set()),
    "exact, held": (None, 0, 100, {"lr": 1e-4, **HELD}, set(), set()),
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


def tune_half(bench):
    """Return the prompts, the first checkpoint that gets 45% of them right, and its share."""
    rows = [
        {"prompt": f"{a} or {b}=", "completion": str(max(a, b))}
        for a in range(10)
        for b in range(10)
    ]
    prompts = bench.write("pairs", rows)
    bench.encode("pairs", [prompts])
    bench.model("fresh", 64, 10)
    bench.tune("tuned", "fresh", 300, rows="pairs", keep_every=10)
    for step in range(30, 301, 10):
        start = f"tuned/checkpoints/step_{step:08d}"
        share = measure_exact(bench, prompts, start)
        if share >= 0.45:
            return prompts, start, share
    raise AssertionError(f"{share} right after 300 steps")


def measure_exact(bench, prompts, model):
    """Return the share of likeliest answers that are right."""
    name = f"exact of {model.replace('/', ' ')}"
    return bench.sample(name, model, prompts, samples=1, temperature=0.0)["reward"]


def list_alarms(folder):
    """Return the alarms that held after any line of a run, with the step, as the run names them."""
    rules = PolicyRules(read_policy_facts(folder))
    found = {}
    for line in metrics.read_series(folder):
        rules.hear(line)
        for alarm in rules.list_holding():
            found.setdefault(alarm.name, [line["step"], alarm.what])
    return found


def test_alarms_name_what_misleads_a_policy_and_are_silent_while_it_learns(bench, write_result):
    prompts, start, share = tune_half(bench)
    found = {}
    for name, (kind, seed, steps, changes, wanted, fitting) in RUNS.items():
        at = name.replace(", ", "-").replace(" ", "-")
        folder = bench.reinforce(
            at, start, steps, seed,
            **{"lr": 3e-4, **changes},
            prompts={"paths": (prompts,), "chat": True},
            rewards=make_rewards(bench, kind),
        )  # fmt: skip
        events = RunFolder(folder).read_events()
        alarms = list_alarms(folder)
        found[name] = {
            "steps": steps,
            "exact": [share, measure_exact(bench, prompts, at)],
            **summarise(metrics.read_series(folder)),
            "alarms": alarms,
            "missing": sorted(wanted - alarms.keys()),
            "false": sorted(alarms.keys() - wanted - fitting),
            # Alarms that the run raised, by all rules; it looks every few seconds.
            "events": sorted({event["name"] for event in events if event["event"] == "alarm"}),
        }
        print(json.dumps({name: found[name]}), flush=True)
        write_result("alarms.json", {"runs": found})
    assert not any(row["missing"] or row["false"] for row in found.values())
