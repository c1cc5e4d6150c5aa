"""Reinforcement learning of sums by small models, and its limits; figures are in `results`.

Each start is the first checkpoint of tuning that gets about half of the held-out sums right.
"""

import json
import random

import pytest

from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_report.rollout_charts import draw_rollouts
from trainrig.train.run_report.run_page import read_report_data

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]
SEEDS = (0, 1, 2)
STEPS = 300
MISLED = 60  # steps of rewards that mislead
HELD = 1.0  # weight of the divergence from the start


def train_by_rewards(bench, name, start, seed, steps=STEPS, **changes):
    """Train a run from `start`, and return its results."""
    folder = bench.reinforce(name, start, steps, seed, **changes)
    lines = metrics.read_series(folder)
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
        start, share = bench.tune_start(seed)
        figures = train_by_rewards(bench, f"{kind}-{seed}", start, seed, **OBJECTIVES[kind])
        found.append({"seed": seed, "start": share, **figures})
    mean = sum(figures["exact"] for figures in found) / len(found)
    write_result(f"{kind.lower()}.json", {"steps": STEPS, "mean_exact": mean, "seeds": found})
    assert mean >= 0.70
    assert all(figures["exact"] >= figures["start"] + 0.12 for figures in found)


# The reward is 1 or 0 by a coin, independent of the answer.
COIN = """
import hashlib


def reward(prompt, completion, row):
    return float(hashlib.sha256(f"{prompt}|{completion}".encode()).digest()[0] < 128)
"""
# Adam's steps are as long for a noisy gradient as for a useful one: at this rate and without a
# reference, 300 steps of coin rewards reduce accuracy from 46% to 2%.
NEAR = {
    "lr": 1e-4,
    "objective": {"kind": "GRPO", "reference": {"weight": 1.0, "estimator": "k3"}},
}


def test_a_run_learns_only_from_informative_rewards(bench, write_result):
    """Compare constant rewards, random rewards and exact answers, the last two alike otherwise."""
    (bench.folder / "coin.py").write_text(COIN)
    coin = {"kind": "PythonFunction", "name": "coin", "file": str(bench.folder / "coin.py")}
    found = []
    for seed in SEEDS:
        start, share = bench.tune_start(seed)
        flat = {"kind": "PatternShape", "pattern": "", "whole": False}
        figures = {
            "untaught": train_by_rewards(bench, f"flat-{seed}", start, seed, 100, rewards=(flat,)),
            "by a coin": train_by_rewards(
                bench, f"coin-{seed}", start, seed, rewards=(coin,), **NEAR
            ),
            "by the answer": train_by_rewards(bench, f"right-{seed}", start, seed, **NEAR),
        }
        found.append({"seed": seed, "start": share, **figures})
        write_result("controls.json", {"steps": STEPS, "seeds": found})
    for figures in found:
        assert figures["untaught"]["exact"] == figures["start"]
        assert abs(figures["by a coin"]["exact"] - figures["start"]) <= 0.05
        assert figures["by the answer"]["exact"] >= figures["start"] + 0.1


# Rewards that rise without right answers.
MISLEADING = {"inverted": "-float(completion == row['completion'])", "length": "len(completion)"}


@pytest.mark.parametrize("kind", MISLEADING)
def test_the_report_names_a_misleading_reward(kind, bench, write_result):
    """The exact answer is measured at weight 0. For alarms, see test_policy_alarms.py."""
    file = bench.folder / f"{kind}.py"
    file.write_text(f"def reward(prompt, completion, row):\n    return float({MISLEADING[kind]})\n")
    rewards = (
        {"kind": "PythonFunction", "name": kind, "file": str(file)},
        {"kind": "ExactAnswer", "column": "completion", "weight": 0.0},
    )
    start, share = bench.tune_start(0)
    figures = train_by_rewards(bench, kind, start, 0, MISLED, rewards=rewards, warmup=10)
    lines = metrics.read_series(bench.at(kind))
    events = RunFolder(bench.at(kind)).read_events()
    found = {
        "steps": MISLED,
        "start": share,
        **figures,
        "tokens_last": lines[-1]["train/diagnostics/completion_tokens"],
        "alarms": sorted({event["name"] for event in events if event["event"] == "alarm"}),
    }
    write_result(f"reward_{kind}.json", found)
    assert found["reward_last"] > found["reward_first"]
    assert found["exact"] <= share - 0.1
    charts = draw_rollouts(read_report_data(bench.at(kind)))
    assert charts["verifier exact"]["hacked"]


def train_reward_model(bench, start, rows):
    """Return the folder of a reward model, trained on few sums so that it can be exploited."""
    dice = random.Random(1)
    pairs = []
    for row in rows:
        right = row["completion"]
        place = dice.randrange(3)
        other = str(dice.randrange(10))
        wrong = right[:place] + other + right[place + 1 :]
        if wrong != right:
            pairs.append({"prompt": row["prompt"], "chosen": right, "rejected": wrong})
    bench.encode("pairs", [bench.write("pairs", pairs)], rows="pairs")
    bench.tune("rewarding", start, 100, rows="pairs", lr=1e-3, objective={"kind": "Reward"})
    return bench.at("rewarding")


def test_a_reward_model_is_fooled_without_a_divergence_and_not_with_it(bench, write_result):
    """PPO uses a reward model trained on 300 pairs; the exact verifier has weight 0."""
    start, share = bench.tune_start(0)
    model = train_reward_model(bench, start, bench.train_rows[:300])
    rewards = (
        {"kind": "RewardModel", "name": "model", "checkpoint": model, "batch": 256},
        {"kind": "ExactAnswer", "column": "completion", "weight": 0.0},
    )
    held = {"weight": HELD, "estimator": "k1", "place": "reward"}
    found = {}
    for name, reference in (("free", None), ("held", held)):
        changes = OBJECTIVES["PPO"] | {"objective": {"kind": "PPO", "reference": reference}}
        found[name] = train_by_rewards(bench, name, start, 0, rewards=rewards, **changes)
    figures = {"steps": STEPS, "start": share, "divergence_weight": HELD, **found}
    write_result("reward_model.json", figures)
    assert found["free"]["reward_last"] > found["free"]["reward_first"]
    assert found["free"]["exact"] <= share - 0.1
    assert found["held"]["exact"] >= share - 0.03
