"""Runs of a design's points, and designs that are impossible."""

import pytest

from trainrig import config
from trainrig.check import describe
from trainrig.errors import ConfigError
from trainrig.flops import count_position_flops
from trainrig.objectives.objective_kinds import MaskedLM
from trainrig.scaling.sweep.rate_search import RateBatchPair
from trainrig.scaling.sweep.sweep_run_file import DesignPoint, Sweep
from trainrig.scaling.sweep.trials import (
    SweepTokens,
    build_run_file,
    count_stable_steps,
    describe_smaller_batches,
    plan,
    read_sweep_tokens,
)

DATA = SweepTokens(tokenizer="abc", vocabulary=320, unique_tokens=1_000_000, held_out_windows=7)
AS_RULED = RateBatchPair(1.0, 1.0)
DESIGN = {"kind": "Grid", "parameters": [10_000, 40_000], "tokens": [1e5, 4e5]}


def build(**changes) -> Sweep:
    settings = {"stage": "sweep", "tokens": "t", "output": "o", "design": DESIGN}
    return config.build(Sweep, settings | changes, "sweep.toml")


def list_points(*pairs: tuple[float, float]) -> list[DesignPoint]:
    return [DesignPoint(n, d) for n, d in pairs]


def test_each_size_at_each_seed_is_a_trial_whose_longest_run_is_its_trunk():
    sweep = build(seeds=[0, 7])
    trials = plan(sweep, list_points((1e4, 1e5), (1e4, 4e5), (4e4, 2e5)), DATA, AS_RULED)
    assert [(t.seed, len(t.lengths)) for t in trials] == [(0, 2), (7, 2), (0, 1), (7, 1)]
    first = trials[0]
    assert first.trunk.steps == max(length.steps for length in first.lengths)
    for length in first.lengths:
        assert length.tokens == length.steps * first.batch * 256
        assert length.tokens == pytest.approx(1e5 if length != first.trunk else 4e5, rel=0.02)


def test_large_sizes_may_go_without_the_further_seeds():
    sweep = build(seeds=[3, 4], seeds_up_to=20_000)
    trials = plan(sweep, list_points((1e4, 1e5), (4e4, 1e5)), DATA, AS_RULED)
    assert [(t.ladder_model.parameters < 2e4, t.seed) for t in trials] == [
        (True, 3),
        (True, 4),
        (False, 3),
    ]


def test_the_trunk_is_saved_where_shorter_runs_leave_it_and_all_have_one_rate_until_then():
    sweep = build()
    (trial,) = plan(sweep, list_points((1e4, 1e5), (1e4, 2e5), (1e4, 4e5)), DATA, AS_RULED)
    runs = [build_run_file(sweep, trial, length, DATA) for length in trial.lengths]
    *branches, trunk = runs
    leaves = [count_stable_steps(sweep, trial, length) for length in trial.lengths[:-1]]
    assert trunk.training.checkpoints.keep_at == tuple(leaves)
    for branch, leave in zip(branches, leaves, strict=True):
        schedule = branch.training.schedule
        steps = branch.training.steps
        assert leave < steps and schedule == trunk.training.schedule
        rates = [schedule.multiplier(at, steps) for at in range(leave)]
        assert rates == [schedule.multiplier(at, trunk.training.steps) for at in range(leave)]
        assert schedule.multiplier(leave, steps) < 1
    assert {run.batches.global_batch for run in runs} == {trial.batch}
    assert {run.training.held_out.rows for run in runs} == {DATA.held_out_windows}


def test_rate_and_batch_are_the_rules_times_the_factors():
    sweep = build(rule={"kind": "StepLaw", "highest_rate": 1.0})
    (one,) = plan(sweep, list_points((4e4, 4e5)), DATA, AS_RULED)
    (other,) = plan(sweep, list_points((4e4, 4e5)), DATA, RateBatchPair(0.5, 0.25))
    assert one.rate == sweep.rule.compute_rate(one.ladder_model.parameters, 4e5)
    assert other.rate == 0.5 * one.rate and other.batch == one.batch / 4


def test_with_mup_all_sizes_have_one_rate_and_say_the_width_it_is_for():
    rule = {"kind": "FixedBatchAndRate", "batch_tokens": 4096, "lr": 0.004}
    sweep = build(mup={"base_channels": 32}, rule=rule, rate_factor=0.5)
    trials = plan(sweep, list_points((1e4, 3e6), (4e5, 3e6)), DATA, RateBatchPair(0.5, 1.0))
    assert {(trial.rate, trial.batch) for trial in trials} == {(0.002, 16)}
    models = [build_run_file(sweep, trial, trial.trunk, DATA).model for trial in trials]
    assert len({model.channels for model in models}) == 2
    assert {(model.mup.base_channels, model.initial_std) for model in models} == {(32, 0.1118)}
    with pytest.raises(ConfigError, match="rule DeepSeek lowers"):
        build(mup={"base_channels": 32})


def test_a_run_shorter_than_the_fewest_steps_has_a_smaller_batch_and_is_refused_when_that_ends():
    sweep = build(batches={"sequence_length": 128}, training={"fewest_steps": 50})
    (trial,) = plan(sweep, list_points((1e4, 128 * 60), (1e4, 1e6)), DATA, AS_RULED)
    assert trial.batch == 1 and trial.lengths[0].steps == 60
    assert describe_smaller_batches(sweep, [trial]).startswith(
        f"1 of 1 trials have a smaller batch than rule DeepSeek gives ({trial.name} 1 of "
    )
    (as_ruled,) = plan(sweep, list_points((1e4, 1e6)), DATA, AS_RULED)
    assert describe_smaller_batches(sweep, [as_ruled]) == ""
    with pytest.raises(
        ConfigError, match=r"2,000 tokens for [\d,]+ parameters are 16 steps of 1 x"
    ):
        plan(sweep, list_points((1e4, 2_000), (1e4, 1e6)), DATA, AS_RULED)


def test_more_passes_than_allowed_are_refused_with_all_that_would_do():
    with pytest.raises(
        ConfigError,
        match=r"1 of its points pass more than 4 times over the 1,000,000 unique tokens of t, the "
        r"longest 5\.0 times .*batches\.epochs = 5 and fit the data-constrained form",
    ):
        plan(build(), list_points((1e4, 1e6), (1e4, 4.99e6)), DATA, AS_RULED)
    plan(build(batches={"epochs": 5.0}), list_points((1e4, 1e6), (1e4, 4.99e6)), DATA, AS_RULED)


def test_sizes_that_give_the_same_decoder_are_rejected():
    with pytest.raises(ConfigError, match="10,000 and 10,001 give the same model"):
        plan(build(), list_points((10_000, 1e5), (10_001, 1e5)), DATA, AS_RULED)


MASKED = {"objective": {"kind": "MaskedLM"}}
NEXT = {"objective": {"kind": "CausalLM"}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective": {"kind": "ReplacedTokenDetection"}}, "give no law; sweep MaskedLM, or"),
        (
            {
                "objective": {"kind": "PrefixLM", "prefix_tokens": 64},
                "batches": {"sequence_length": 64},
            },
            "prefix_tokens",
        ),
        (
            {"objective": {"kind": "MixtureOfObjectives", "members": [MASKED, NEXT]}},
            "objective MaskedLM needs the context on both sides",
        ),
        ({"seeds": [-1]}, "seeds"),
    ],
)
def test_a_sweep_is_rejected_if_a_trial_would_be(changes, said):
    with pytest.raises(ConfigError) as refused:
        build(**changes)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_check_describes_a_sweep_without_training(tokens):
    design = {"kind": "Grid", "parameters": [6_000, 12_000], "tokens": [1_024, 4_096]}
    rows = {"sequence_length": 32, "micro_batch": 4}
    training = {"fewest_steps": 4, "decay": 0.25, "warmup": 0.0}
    sweep = build(tokens=tokens, design=design, batches=rows, training=training)
    facts = describe(sweep)
    assert (facts["trials"], facts["runs"]) == (2, 4)
    # The longer run of each size, and a quarter of the shorter one.
    sizes = facts["parameters_least"] + facts["parameters_most"]
    assert facts["flops_by_6nd"] == pytest.approx(6 * sizes * (4_096 + 1_024 / 4), rel=0.1)
    assert facts["flops"] > facts["flops_by_6nd"]
    assert facts["epochs_most"] == pytest.approx(4_096 / facts["unique_tokens"], rel=0.1)


@pytest.mark.slow
def test_a_rate_of_hiding_that_falls_is_counted_step_by_step(corrupted_tokens):
    rows = {"sequence_length": 32, "micro_batch": 4}
    training = {"fewest_steps": 4, "decay": 0.25, "warmup": 0.0}
    design = {"kind": "Grid", "parameters": [12_000, 50_000], "tokens": [1_024, 4_096]}
    falling = MaskedLM(rate=0.5, final_rate=0.1, rate_steps=8)
    settings = {"tokens": corrupted_tokens, "batches": rows, "training": training}
    sweep = build(**settings, design=design, objective=falling.model_dump())
    data = read_sweep_tokens(sweep)
    expected = 0.0
    for trial in plan(sweep, sweep.design.list_points(None), data, AS_RULED):
        trunk = trial.trunk.steps
        branch = trial.lengths[0].steps
        made = [*range(trunk), *range(count_stable_steps(sweep, trial, trial.lengths[0]), branch)]
        for step in made:
            # Its mean over a step is the rate at the middle.
            of = MaskedLM(rate=falling.rate_at(step + 0.5))
            positions = trial.batch * 32
            expected += positions * count_position_flops(of, trial.ladder_model.model, 32)
    assert describe(sweep)["flops"] == pytest.approx(expected)
    exact = {"kind": "IsoFLOP", "parameters": [12_000, 50_000], "budgets": [1e9], "flops": "exact"}
    with pytest.raises(ConfigError, match=r'with final_rate the operations .*flops = "6ND"'):
        build(**settings, design=exact, objective=falling.model_dump())


def test_an_early_stop_of_a_laws_points_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match=r"no scheduler may stop.*\[search"):
        build(scheduler={"kind": "ASHA"})
