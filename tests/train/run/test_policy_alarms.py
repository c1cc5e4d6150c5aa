from pathlib import Path

import numpy as np
import pytest
from support.rollout_fixtures import make_run, problems
from support.tuning_fixtures import encoder, fresh

from trainrig.config import to_toml, with_absolute_paths
from trainrig.rl.reinforcement_stage import reinforce
from trainrig.train.run.alarms import AlarmWatch
from trainrig.train.run.metric_trends import Trend
from trainrig.train.run.policy_alarms import (
    REMEMBERED,
    PolicyFacts,
    PolicyRules,
    read_policy_facts,
)
from trainrig.train.run.run_folder import RunFolder

__all__ = ["encoder", "fresh", "make_run", "problems"]

STEPS = 100
# A calm run: the mean of each diagnostic, and the standard deviation from batch to batch.
CALM = {
    "reward": (0.4, 0.03),
    "reward_exact": (0.5, 0.03),
    "entropy": (0.5, 0.02),
    "distinct": (0.6, 0.03),
    "shared": (0.05, 0.01),
    "flat": (0.3, 0.05),
    "completion_tokens": (100.0, 5.0),
    "finished": (0.98, 0.01),
    "policy_change": (0.001, 0.0002),
    "sampler_gap": (1e-4, 1e-5),
    "reference_divergence": (0.02, 0.002),
}
FACTS = PolicyFacts(measured=("exact",))


def make_lines(steps=STEPS, seed=0, updates=1, **ends):
    """Return lines of a calm run in which the diagnostics in `ends` move evenly to another mean."""
    random = np.random.default_rng(seed)
    lines = []
    for batch in range(steps // updates):
        past = batch / (steps // updates - 1)
        line = {}
        for name, (mean, spread) in CALM.items():
            at = mean + past * (ends.get(name, mean) - mean)
            line[f"train/diagnostics/{name}"] = at + spread * random.standard_normal()
        for update in range(updates):
            step = batch * updates + update + 1
            lines.append({"step": step, "attempt": 1, "train/loss": 0.0, **line})
    return lines


def raise_alarms(lines, facts=FACTS, after_all=False):
    """Return the alarms by name that held after any tenth line, or `after_all` of them."""
    rules = PolicyRules(facts)
    found = {}
    for number, line in enumerate(lines, 1):
        rules.hear(line)
        if number == len(lines) or (number % 10 == 0 and not after_all):
            found |= {alarm.name: alarm for alarm in rules.list_holding()}
    return found


@pytest.mark.parametrize("seed", range(3))
def test_calm_and_learning_runs_raise_no_alarm(seed):
    learning = {"reward": 0.8, "reward_exact": 0.9, "entropy": 0.08, "distinct": 0.2, "flat": 0.8}
    longer = {"completion_tokens": 300.0, "finished": 0.8, "reward_exact": 0.8, "reward": 0.7}
    for ends in ({}, learning, longer):
        assert raise_alarms(make_lines(400, seed, **ends)) == {}


# Name of the alarm, diagnostics at the end, and a part of its message.
CASES = [
    ("reward_hacking", {"reward": 0.8, "reward_exact": 0.2}, "but 'exact' fell from 0.4"),
    ("policy_collapse", {"flat": 1.1, "distinct": 0.0}, "nearly equal answers"),
    ("policy_collapse", {"flat": 1.1}, "although the answers differ"),
    ("policy_collapse", {"entropy": 0.01, "distinct": 0.13}, "entropy fell from"),
    ("policy_collapse", {"shared": 1.0, "reward": 0.9, "reward_exact": 0.6}, "the same answer"),
    ("length_growth", {"completion_tokens": 300.0}, "without gain"),
    ("length_growth", {"finished": 0.5}, "are cut off"),
    ("policy_drift", {"entropy": 2.0}, "entropy rose from"),
    ("policy_drift", {"reference_divergence": 1.0}, "away from the reference"),
    ("policy_drift", {"reward": 0.1}, "'reward' fell from"),
    ("policy_drift", {"reward_exact": 0.1}, "'exact' fell from"),
    ("policy_drift", {"policy_change": 0.2}, "within a batch"),
    ("policy_drift", {"sampler_gap": 0.02}, "sampling and training differ"),
]


@pytest.mark.parametrize(("name", "ends", "part"), CASES)
def test_each_alarm_is_raised_by_what_it_is_for(name, ends, part):
    found = raise_alarms(make_lines(200, **ends), after_all=True)
    assert set(found) == {name}
    alarm = found[name]
    assert part in alarm.what
    assert alarm.action and len(str(alarm)) < 220


@pytest.mark.parametrize(
    ("ends", "facts"),
    [
        # The trained reward rises at the cost of a part that is trained on as well.
        ({"reward": 0.8, "reward_exact": 0.2}, PolicyFacts()),
        # A critic or a teacher gives equal rewards a gradient.
        ({"flat": 1.0}, PolicyFacts(compares=False)),
        ({"flat": 1.0, "reward": 0.1}, PolicyFacts(rewarded=False)),
        # Longer answers, and less entropy, with gain.
        ({"completion_tokens": 300.0, "reward": 0.8}, PolicyFacts()),
        ({"entropy": 0.01, "distinct": 0.13, "reward": 0.8}, PolicyFacts()),
        # A clip and a gap that the run file allows.
        ({"policy_change": 0.2}, PolicyFacts(clip_high=1.0)),
        ({"sampler_gap": 0.02}, PolicyFacts(largest_gap=1.0)),
        # A run without samples.
        ({"reward": 0.1}, None),
    ],
)
def test_what_the_run_file_explains_raises_no_alarm(ends, facts):
    assert raise_alarms(make_lines(200, **ends), facts) == {}


def test_a_held_out_score_that_falls_while_the_reward_rises_is_hacking():
    def scored(step, value, error=0.01, name="exact_match"):
        name = f"scores/held-out/sums/{name}"
        return [{"step": step, name: value}, {"step": step, f"{name}/error": error}]

    rising = make_lines(reward=0.8)
    facts = PolicyFacts()
    fallen = [*scored(50, 0.6), *scored(100, 0.4)]
    alarm = raise_alarms([*rising, *fallen], facts)["reward_hacking"]
    assert "'held-out/sums/exact_match' fell from 0.6 to 0.4 after step 50" in alarm.what
    assert raise_alarms([*make_lines(), *fallen], facts) == {}
    within_error = [*scored(50, 0.6, 0.1), *scored(100, 0.4, 0.1)]
    assert raise_alarms([*rising, *within_error], facts) == {}
    better = [*scored(50, 2.0, name="bits_per_byte"), *scored(100, 1.0, name="bits_per_byte")]
    assert raise_alarms([*rising, *better], facts) == {}


def test_scores_of_an_attempt_that_is_thrown_away_are_forgotten():
    name = "scores/held-out/sums/exact_match"
    rules = PolicyRules(PolicyFacts())

    def hear(lines, *scores):
        for line in lines:
            rules.hear(line)
        for step, value in scores:
            rules.hear({"step": step, name: value})
            rules.hear({"step": step, f"{name}/error": 0.01})
        return [alarm.name for alarm in rules.list_holding()]

    rising = make_lines(reward=0.8)
    assert hear(rising[:80], (50, 0.6)) == []
    # The attempt that is resumed at step 60 had a bad checkpoint at step 80.
    rules.hear({"step": 80, name: 0.1})
    rules.hear({"step": 80, f"{name}/error": 0.01})
    assert hear(rising[60:]) == []
    assert hear([], (80, 0.6)) == []
    assert hear([], (100, 0.1)) == ["reward_hacking"]


def test_a_metric_that_is_no_longer_finite_does_not_silence_the_others():
    lines = make_lines(200, reward=0.8, reward_exact=0.2)
    for line in lines[20:]:
        line["train/diagnostics/reference_divergence"] = None
    assert set(raise_alarms(lines)) == {"reward_hacking"}


def test_a_repeated_step_that_is_not_finite_replaces_the_step_before_it():
    rules = PolicyRules(FACTS)
    lines = make_lines(60)
    for line in lines:
        rules.hear(line)
    again = lines[30] | {"train/diagnostics/reward": None}
    rules.hear(again)
    assert rules._steps == list(range(1, 32))
    assert rules._values["reward"][-1] == lines[29]["train/diagnostics/reward"]


def test_a_long_run_needs_no_more_memory_and_no_longer_looks():
    """The first parts and the newest ones are kept, and alarms name the steps of the run."""
    lines = make_lines(250)
    rules = PolicyRules(FACTS)
    sizes = []
    for step in range(1, 30_001):
        line = lines[step % 250] | {"step": step}
        if step > 29_000:
            line |= {"train/diagnostics/reward": 0.8, "train/diagnostics/reward_exact": 0.2}
        rules.hear(line)
        if step % 10 == 0:
            rules.hear({"step": step, "scores/a/b/c": 0.5})
        sizes.append(len(rules._steps))
        if step == 29_000:
            assert rules.list_holding() == []
    assert max(sizes) == REMEMBERED
    assert {len(values) for values in rules._values.values()} == {len(rules._steps)}
    assert len(rules._scores["a/b/c"]) <= len(rules._steps) // 10 + 1
    assert rules._steps[:200] == list(range(1, 201))
    assert rules._steps[-5_000:] == list(range(25_001, 30_001))
    (alarm,) = rules.list_holding()
    assert alarm.name == "reward_hacking"
    assert int(alarm.what.rpartition(" ")[2].replace(",", "")) <= 29_000


def test_steps_that_an_attempt_repeats_count_once():
    lines = make_lines(200, reward=0.8)
    fallen = make_lines(200, seed=1, reward=0.8, reward_exact=0.0)
    assert raise_alarms([*lines[:150], *fallen], after_all=True)
    # The attempt that fell is thrown away, and its steps are made again.
    assert raise_alarms([*fallen, *lines], after_all=True) == {}


def test_several_updates_of_a_batch_are_one_observation():
    """Counted as two, equal values would halve the noise between neighbours."""
    rules = PolicyRules(PolicyFacts(updates=2))
    for line in make_lines(60, updates=2):
        rules.hear(line)
    single = PolicyRules(PolicyFacts())
    for line in make_lines(60, updates=2)[1::2]:
        single.hear(line)
    rules.list_holding()
    single.list_holding()
    for name, trend in rules._trends.items():
        np.testing.assert_array_equal(trend.variances, single._trends[name].variances)


def test_the_noise_is_that_of_a_mean_and_no_trend_adds_to_it():
    random = np.random.default_rng(0)
    trends = [
        Trend.of(random.standard_normal(20) + slope * np.arange(20), 10)
        for slope in (0.0, 0.1)
        for _ in range(4_000)
    ]
    for some in (trends[:4_000], trends[4_000:]):
        # The variance of a mean of ten is 1/10; the slope adds its square / 2 / 10.
        assert np.mean([trend.variances[0] for trend in some]) == pytest.approx(0.1, rel=0.03)
        spread = np.std([trend.last - trend.first for trend in some])
        assert spread == pytest.approx(np.sqrt(0.2), rel=0.03)


def test_null_and_missing_values_raise_nothing():
    lines = make_lines(200, reward=0.8, reward_exact=0.2)
    for line in lines[::3]:
        line["train/diagnostics/reward"] = None
    assert set(raise_alarms(lines)) == {"reward_hacking"}
    for line in lines[:5]:
        del line["train/diagnostics/reward_exact"]
    assert raise_alarms(lines) == {}


def test_the_run_file_gives_the_facts_that_the_rules_depend_on(make_run, tmp_path):
    def read(**changes):
        run = make_run(tmp_path / "run", **changes)
        Path(tmp_path, "run.toml").write_text(to_toml(with_absolute_paths(run)))
        return read_policy_facts(str(tmp_path))

    assert read_policy_facts(str(tmp_path)) is None
    measured = ({"kind": "ExactAnswer", "weight": 0.0}, {"kind": "PatternShape", "pattern": "e"})
    dapo = read(objective={"kind": "DAPO"}, rewards=measured, rollouts={"updates": 2})
    assert dapo == PolicyFacts(
        measured=("exact",), updates=2, samples=4, largest_gap=0.02, clip_high=0.28
    )
    # A token at 1.28 times its probability has moved further than one at .8 times.
    assert dapo.clipped_change == pytest.approx(1.28 - 1 - np.log(1.28))
    assert not read(objective={"kind": "PPO"}).compares
    # Clips of whole completions are narrower, but the metric is a mean over tokens.
    assert read(objective={"kind": "GSPO"}).clipped_change == PolicyFacts().clipped_change
    assert not read(
        objective={"kind": "OnPolicyDistillation"}, teacher="runs/teacher", rewards=()
    ).rewarded


@pytest.mark.slow
def test_a_run_whose_reward_tells_no_answers_apart_says_so(make_run, tmp_path, without_ray):
    constant = {"kind": "PatternShape", "pattern": "", "whole": False}
    measured = {"kind": "ExactAnswer", "weight": 0.0}
    folder = str(tmp_path / "run")
    reinforce(make_run(folder, rewards=(constant, measured), training={"steps": 12}))
    (alarm,) = (event for event in RunFolder(folder).read_events() if event["event"] == "alarm")
    assert alarm["name"] == "policy_collapse"
    assert "100% of groups have equal rewards, although the answers differ" in alarm["what"]
    assert AlarmWatch(folder, 12).look() == []
