"""Designs from a budget: what they spend, what they keep, and what is impossible."""

from collections import defaultdict

import pytest

from trainrig import config
from trainrig.errors import ConfigError
from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.regression.optimal_design import CandidateTrial, TargetKnowledge
from trainrig.scaling.sweep.budget_design import (
    BudgetDesign,
    design_trials,
    find_prior_laws,
    limit_to_guess,
)
from trainrig.scaling.sweep.sweep_run_file import OptimalDesign, Sweep
from trainrig.scaling.sweep.sweep_tasks import make_paths_absolute

TARGET = (1e9, 2e10)


def build_design(budgets: list[float], **changes: object) -> OptimalDesign:
    texts = tuple(f"{budget}FLOPs" for budget in budgets)
    return OptimalDesign(**{"budgets": texts, "predict": TARGET} | changes)


def design_for(budgets: list[float], **changes: object) -> BudgetDesign:
    def build_trial(size, tokens):
        return tokens, CandidateTrial(size, tokens, 6 * size * sum(tokens))

    return design_trials(build_design(budgets, **changes), budgets, 5, 10.0, build_trial)


def test_a_design_spends_at_most_its_budget_on_three_sizes_or_more():
    design = design_for([1e18])
    assert 0.7e18 < sum(trial.candidate.cost for trial in design.trials) <= 1e18
    assert len({trial.parameters for trial in design.trials if trial.stage == 0}) >= 3
    spent = [stage.flops for stage in design.stages]
    assert spent == sorted(spent) and spent[0] <= 1e18 / 16 and spent[1] <= 1e18 / 4
    widths = [stage.expected_width for stage in design.stages]
    assert widths == sorted(widths, reverse=True)
    assert design.stages[-1].runs == sum(len(trial.tokens) for trial in design.trials)


def test_a_size_that_is_repeated_gets_the_next_seed():
    seeds = defaultdict(list)
    for trial in design_for([1e18]).trials:
        seeds[trial.parameters].append(trial.seed)
    assert all(found == list(range(5, 5 + len(found))) for found in seeds.values())
    assert max(map(len, seeds.values())) > 1


def test_a_larger_budget_keeps_all_trials_of_the_smaller_one():
    smaller = design_for([1e18])
    larger = design_for([1e18, 5e18])
    assert larger.trials[: len(smaller.trials)] == smaller.trials
    assert larger.stages[: len(smaller.stages)] == smaller.stages
    assert larger.stages[-1].expected_width < smaller.stages[-1].expected_width


def test_less_noise_and_a_nearer_target_are_expected_to_give_a_narrower_prediction():
    usual = design_for([1e18]).stages[-1].expected_width
    assert design_for([1e18], noise=0.02).stages[-1].expected_width > usual
    assert design_for([1e18], predict=(3e8, 6e9)).stages[-1].expected_width < usual


def test_no_run_is_larger_than_the_target_or_outside_the_range_of_ratios():
    design = design_for([1e18], tokens_per_parameter=(8.0, 40.0))
    ratios = [trial.tokens[-1] / trial.parameters for trial in design.trials]
    assert min(ratios) >= 8 and max(ratios) <= 40
    assert all(trial.tokens[-1] <= TARGET[1] for trial in design.trials)


@pytest.mark.parametrize(
    ("budgets", "changes", "problem"),
    [
        ([1e10], {}, "1e+10 FLOPs are too few for trials of 3 sizes, which a law needs; set "),
        ([1e21], {}, "1,000,000,000 parameters on 20,000,000,000 tokens takes 1.2e+20 FLOPs, no"),
        ([1e18], {"predict": (1e9, 1e5)}, "fewer than 3 sizes can be trained below it"),
        ([1e18], {"prior": "kaplan"}, "design.prior: kaplan has the form Kaplan, which has no"),
        ([1e18], {"prior": "hofman"}, "did you mean 'hoffmann'"),
    ],
)
def test_an_impossible_design_is_refused_in_one_line(budgets, changes, problem):
    with pytest.raises(ConfigError) as refused:
        design_for(budgets, **changes)
    assert problem in str(refused.value) and "\n" not in str(refused.value)


def test_the_least_budget_that_an_error_names_is_enough():
    with pytest.raises(ConfigError) as refused:
        design_for([1e10])
    named = str(refused.value).partition("set ")[2].partition("FLOPs")[0]
    assert len({trial.parameters for trial in design_for([float(named)]).trials}) >= 3


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"predict": [1e5, 1e6]}, "100,000 parameters are not above 3 sizes of trials from 30,000"),
        ({"budgets": ["3kWh"]}, "unknown unit 'kWh'"),
        ({"budgets": ["1e18FLOPs", "20h"]}, "give all budgets in one unit"),
        ({"budgets": ["2h", "1h"]}, "2h, 1h: each budget must be larger than the one before"),
        ({"parameters": [3e6, 1e6]}, "parameters: the least value, 3e+06, is above the greatest"),
        ({"tokens_per_parameter": [40, 4]}, "tokens_per_parameter: the least value, 40, is above"),
        ({"noise": 1e-9}, "design.noise: input should be greater than or equal to 0.000001"),
    ],
)
def test_an_impossible_run_file_is_refused_in_one_line(changes, problem):
    design = {"kind": "OptimalDesign", "budgets": ["1e18FLOPs"], "predict": TARGET} | changes
    with pytest.raises(ConfigError) as refused:
        config.build(Sweep, {"tokens": "t", "output": "o", "design": design}, "s")
    assert problem in str(refused.value) and "\n" not in str(refused.value)


def test_seeds_are_the_designs_to_choose():
    design = {"kind": "OptimalDesign", "budgets": ["1e18FLOPs"], "predict": TARGET}
    for seeds in ({"seeds": [0, 1]}, {"seeds_up_to": 1e6}):
        with pytest.raises(ConfigError, match="give one seed, from which it counts"):
            config.build(Sweep, {"tokens": "t", "output": "o", "design": design} | seeds, "s")


def test_a_prior_is_a_published_law_or_the_mean_of_three():
    assert len(find_prior_laws(None)) == 3
    (law,) = find_prior_laws("muennighoff")
    assert isinstance(law, Parametric) and law.alpha == law.beta


def test_a_prior_in_a_file_does_not_depend_on_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    design = {"kind": "OptimalDesign", "budgets": ["1e18FLOPs"], "predict": TARGET}
    for prior, found in (("law.json", str(tmp_path / "law.json")), ("hoffmann", "hoffmann")):
        given = {"tokens": "t", "output": "o", "design": design | {"prior": prior}}
        run = make_paths_absolute(config.build(Sweep, given, "s"))
        assert run.design.prior == found and run.output == str(tmp_path / "o")


def test_the_least_noise_gives_finite_widths():
    widths = [stage.expected_width for stage in design_for([1e18], noise=1e-6).stages]
    assert widths == sorted(widths, reverse=True) and widths[-1] > 0


def test_a_prior_is_lowered_to_a_blind_guess_for_small_models():
    (law,) = find_prior_laws("hoffmann")
    assert law.compute_loss(1e4, 1e5) > 9
    lowered = limit_to_guess(law, 1e4, 1e5, 6.0)
    assert lowered.compute_loss(1e4, 1e5) == pytest.approx(6.0)
    assert (lowered.E, lowered.alpha, lowered.beta) == (law.E, law.alpha, law.beta)
    assert limit_to_guess(law, 1e9, 1e10, 6.0) == law


@pytest.mark.parametrize(("beside", "share"), [(0.0, 0.8), (0.05, 1.0)])
def test_an_optimal_design_is_expected_to_predict_better_than_a_grid_of_equal_cost(beside, share):
    """Compare the variance under laws that the design assumes, and under others."""
    laws = [
        law.model_copy(update={"alpha": law.alpha + beside, "beta": law.beta - beside})
        for law in find_prior_laws(None)
    ]
    grid = [(n, tuple(r * n for r in (5, 10, 20, 40))) for n in (1.0, 2.0, 4.0, 8.0)]
    cost = sum(6 * n * sum(tokens) for n, tokens in grid)
    scale = (1e18 / cost) ** 0.5
    found = {}
    designs = {
        "optimal": [trial.candidate for trial in design_for([1e18]).trials],
        "grid": [
            CandidateTrial(n * scale, tuple(scale * d for d in tokens), 6 * n * sum(tokens))
            for n, tokens in grid
        ],
    }
    for name, trials in designs.items():
        knowledge = TargetKnowledge(laws, *TARGET, 0.003)
        for trial in trials:
            knowledge.add(trial)
        found[name] = knowledge.variances
    assert (found["optimal"] < share * found["grid"]).all()
