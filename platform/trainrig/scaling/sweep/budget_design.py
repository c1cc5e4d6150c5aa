"""Design of a sweep from a budget: the trials that predict the loss of one larger run best.

The budget is spent in stages. Each stage is designed on top of the earlier ones, so a sweep may
end after any of them, and may continue with a larger budget.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.errors import ConfigError
from trainrig.flops import count_flops_6nd
from trainrig.scaling.laws.law_forms import LEVELS, DataConstrained, Form, OverTraining, Parametric
from trainrig.scaling.laws.published_laws import LAWS, find_law
from trainrig.scaling.laws.stacking import Spread
from trainrig.scaling.regression.optimal_design import (
    CandidateTrial,
    TargetKnowledge,
    extend_design,
)
from trainrig.scaling.sweep.sweep_run_file import OptimalDesign

# Published laws that are assumed where the run file names none. They disagree about the exponents.
PRIORS = ("hoffmann", "besiroglu", "muennighoff")
# Stages of the first budget, and of the increase by each later one, as shares of it. Small runs
# teach little after larger ones, so an increase begins with a quarter.
FIRST_STAGES = (1 / 16, 1 / 4, 1.0)
LATER_STAGES = (1 / 4, 1.0)
# Cost of a trial, as shares of the budget of its stage. Smaller trials cost more in overhead and in
# the form's error than they teach, and a larger one would leave no other.
LEAST_SHARE = 0.08
MOST_SHARE = 0.5
MOST_TRIALS = 12  # trials of a stage, where the data allow no longer runs
SIZE_STEP = 2.0  # ratio of neighbouring sizes, and of neighbouring D/N
MOST_LENGTHS = 4  # runs of a trial; each is half as long as the next
LEVEL = 0.95  # level of the interval whose width is announced and measured

BuildTrial = Callable[[float, Sequence[float]], tuple[Sequence[float], CandidateTrial] | None]
"""Function that builds the trial of a requested size and lengths, or returns None if it cannot.

It returns the lengths that the trial keeps, and a candidate with the model's own N, the tokens of
whole steps, and the exact number of operations.
"""


_Found = tuple[float, Sequence[float], CandidateTrial]  # requested N and lengths, and the trial


@dataclass(frozen=True)
class DesignedTrial:
    """Trial that was chosen for one stage of the design."""

    parameters: float  # N as requested
    tokens: tuple[float, ...]  # D of each run, as requested
    seed: int
    stage: int
    candidate: CandidateTrial


@dataclass(frozen=True)
class DesignStage:
    """Cost and expected width of a sweep after a stage, with all earlier stages."""

    trials: int
    runs: int
    flops: float
    expected_width: float  # width of the target's interval, relative to its loss

    def describe(self, cost: str = "") -> str:
        """Return one line with the stage's size, its cost and the expected width.

        `cost` follows the FLOPs: their hours and dollars, if known.
        """
        return (
            f"{self.trials} trials, {self.runs} runs, {self.flops:.3g} FLOPs{cost} in all; "
            f"expected width of the predicted loss {self.expected_width:.1%}"
        )


@dataclass(frozen=True)
class BudgetDesign:
    """Trials of a design, and the cost and expected width of each stage."""

    design: OptimalDesign
    trials: tuple[DesignedTrial, ...]
    stages: tuple[DesignStage, ...]


def find_prior_laws(prior: str | None) -> tuple[Parametric, ...]:
    """Return the laws that a design assumes: the published ones, or the law called `prior`.

    `prior` is the name of a published law, or the path of a law.json. Raises ConfigError for a form
    without separate terms for parameters and tokens.
    """
    if prior is None:
        return tuple(_to_parametric(name, LAWS[name].form) for name in PRIORS)
    return (_to_parametric(prior, find_law(prior).form),)


def _to_parametric(name: str, form: Form) -> Parametric:
    if isinstance(form, DataConstrained):
        return form.base
    if isinstance(form, OverTraining):
        return form.parametric
    if isinstance(form, Parametric):
        return form
    raise ConfigError(
        f"design.prior: {name} has the form {form.kind}, which has no separate terms for "
        "parameters and tokens; use a Parametric, OverTraining or DataConstrained law"
    )


def limit_to_guess(law: Parametric, parameters: float, tokens: float, guess: float) -> Parametric:
    """Lower both terms of `law` so that the loss of a small run is not above a blind guess.

    Published laws were fitted to larger models. Carried down to small ones, they predict losses
    above that of guessing among the vocabulary, `guess` nats.
    """
    loss = float(law.compute_loss(parameters, tokens))
    if loss <= guess or guess <= law.E:
        return law
    factor = (guess - law.E) / (loss - law.E)
    return law.model_copy(update={"A": law.A * factor, "B": law.B * factor})


def design_trials(
    design: OptimalDesign,
    budgets: Sequence[float],
    first_seed: int,
    guess: float,
    build_trial: BuildTrial,
) -> BudgetDesign:
    """Design the trials for `budgets` in FLOPs, each of which includes the ones before.

    `guess` is the loss of a blind guess in nats. A model that is chosen again gets the next seed.
    Raises ConfigError if the budget or the target is impossible.
    """
    found = [
        (parameters, *built)
        for parameters, tokens in _iterate_requests(design)
        if (built := build_trial(parameters, tokens)) is not None
    ]
    _check_target(design, budgets, [trial for *_, trial in found])
    needed = _compute_least_budget([trial for *_, trial in found])
    if budgets[0] < needed:
        raise ConfigError(
            f"design.budgets: {budgets[0]:.3g} FLOPs are too few for trials of {LEVELS} sizes, "
            f"which a law needs; set {1.01 * needed:.3g}FLOPs or more, or allow smaller "
            "design.parameters"
        )
    smallest = min((trial for *_, trial in found), key=lambda trial: trial.cost)
    laws = [
        limit_to_guess(law, smallest.parameters, smallest.tokens[0], guess)
        for law in find_prior_laws(design.prior)
    ]
    knowledge = TargetKnowledge(laws, *design.predict, design.noise)
    chosen: list[DesignedTrial] = []
    stages: list[DesignStage] = []
    repeats: Counter[float] = Counter()  # trials of each size
    for limit in _list_limits(budgets):
        left = limit - sum(trial.candidate.cost for trial in chosen)
        sizes_known = len(knowledge.sizes) >= LEVELS
        if not sizes_known and left < needed:
            continue  # the next stage begins with all sizes that a fit asks for
        open_ones = _select_worthwhile(found, left, sizes_known)
        places = extend_design(
            knowledge, [trial for *_, trial in open_ones], left, MOST_SHARE, LEVELS, MOST_TRIALS
        )
        for place in places:
            parameters, tokens, trial = open_ones[place]
            seed = first_seed + repeats[parameters]
            repeats[parameters] += 1
            chosen.append(DesignedTrial(parameters, tuple(tokens), seed, len(stages), trial))
        if places:
            stages.append(_describe_stage(chosen, knowledge, design.noise))
    return BudgetDesign(design, tuple(chosen), tuple(stages))


def _iterate_requests(design: OptimalDesign) -> Iterator[tuple[float, tuple[float, ...]]]:
    """Yield the size and the lengths of each trial that may be asked for."""
    target_parameters, target_tokens = design.predict
    most_work = target_parameters * target_tokens
    least, most = design.tokens_per_parameter
    count = 1 + math.floor(math.log(most / least) / math.log(SIZE_STEP) + 1e-9)
    for parameters in design.list_sizes():
        for ratio in (least * SIZE_STEP**step for step in range(count)):
            longest = parameters * ratio
            if longest <= target_tokens and parameters * longest < most_work:
                lengths = (longest / 2**halvings for halvings in range(MOST_LENGTHS))
                yield parameters, tuple(sorted(lengths))


def _list_limits(budgets: Sequence[float]) -> Iterator[float]:
    """Yield the FLOPs in all after which a stage ends."""
    spent = 0.0
    for budget in budgets:
        for share in LATER_STAGES if spent else FIRST_STAGES:
            yield budget if share == 1 else spent + share * (budget - spent)
        spent = budget


def _describe_stage(
    chosen: Sequence[DesignedTrial], knowledge: TargetKnowledge, noise: float
) -> DesignStage:
    deviation = math.sqrt(float(np.mean(knowledge.variances)))
    half = Spread(noise=noise).compute_half_width(deviation, 0.0, LEVEL)
    return DesignStage(
        trials=len(chosen),
        runs=sum(len(trial.candidate.tokens) for trial in chosen),
        flops=sum(trial.candidate.cost for trial in chosen),
        expected_width=2 * math.sinh(half),
    )


def _check_target(
    design: OptimalDesign, budgets: Sequence[float], trials: Sequence[CandidateTrial]
) -> None:
    """Raise ConfigError if no trial is smaller than the target, or if the target is affordable."""
    parameters, tokens = design.predict
    named = f"design.predict: {parameters:,.0f} parameters on {tokens:,.0f} tokens"
    if len({trial.parameters for trial in trials}) < LEVELS:
        raise ConfigError(
            f"{named}: fewer than {LEVELS} sizes can be trained below it; lower "
            "design.parameters or training.fewest_steps, tokenize more text, or predict a larger "
            "run"
        )
    cost = count_flops_6nd(parameters, tokens)
    if budgets[-1] >= cost:
        raise ConfigError(
            f"{named} takes {cost:.3g} FLOPs, no more than the budget of {budgets[-1]:.3g}; train "
            "it, or predict a larger run"
        )


def _compute_least_budget(trials: Sequence[CandidateTrial]) -> float:
    """Return the least FLOPs that pay for trials of LEVELS sizes, with an equal part for each."""
    cheapest: dict[float, float] = {}  # least cost, keyed by size
    for trial in trials:
        cost = min(trial.cost, cheapest.get(trial.parameters, math.inf))
        cheapest[trial.parameters] = cost
    return LEVELS * sorted(cheapest.values())[LEVELS - 1]


def _select_worthwhile(
    found: Sequence[_Found], budget: float, sizes_known: bool
) -> Sequence[_Found]:
    """Return the trials that may take part in a stage of `budget` FLOPs.

    They cost at least LEAST_SHARE of it. Unless the design has all sizes that a fit asks for, or if
    the data allow no trial of that cost, the costliest of each size that an equal part of the
    budget pays for may take part, too.
    """
    large = [entry for entry in found if entry[-1].cost >= LEAST_SHARE * budget]
    if large and sizes_known:
        return large
    costliest: dict[float, _Found] = {}
    for entry in found:
        trial = entry[-1]
        best = costliest.get(trial.parameters)
        if trial.cost <= budget / LEVELS and (best is None or trial.cost > best[-1].cost):
            costliest[trial.parameters] = entry
    return [entry for entry in found if entry in large or entry in costliest.values()]
