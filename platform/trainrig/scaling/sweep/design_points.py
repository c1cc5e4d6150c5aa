"""Points of a sweep's design, and the estimate of what they will cost, from the table of hardware.

An optimal design depends on the exact cost of trials, so it plans each trial that it may contain.
"""

import functools
import math
from collections.abc import Iterator, Sequence

from trainrig import hardware, storage
from trainrig.errors import ConfigError
from trainrig.estimate.cost_estimate import USUAL_SHARE
from trainrig.flops import count_flops_6nd
from trainrig.manifest import MANIFEST
from trainrig.scaling.laws.law_formats import format_usd
from trainrig.scaling.model_ladder import LadderModel
from trainrig.scaling.regression.optimal_design import CandidateTrial
from trainrig.scaling.sweep.budget_design import BudgetDesign, design_trials
from trainrig.scaling.sweep.budget_units import SweepBudget
from trainrig.scaling.sweep.rate_search import RateBatchPair
from trainrig.scaling.sweep.sweep_run_file import DesignPoint, ModelShape, OptimalDesign, Sweep
from trainrig.scaling.sweep.trials import (
    SweepTokens,
    Trial,
    count_flops_per_token,
    count_stable_steps,
    describe_smaller_batches,
    find_sweep_model,
    plan,
    plan_trial,
    read_sweep_tokens,
)


def list_design_points(
    sweep: Sweep, data: SweepTokens, designed: BudgetDesign | None = None
) -> tuple[DesignPoint, ...]:
    """Return the points of the design of `sweep`.

    `designed` is the result of `build_budget_design`, if the caller has it.
    """
    design = sweep.design
    if isinstance(design, OptimalDesign):
        designed = designed or build_budget_design(sweep, data)
        assert designed is not None
        return tuple(
            DesignPoint(trial.parameters, tokens, seed=trial.seed, stage=trial.stage)
            for trial in designed.trials
            for tokens in trial.tokens
        )

    def model(parameters: float) -> ModelShape:
        made = find_sweep_model(sweep, parameters, data)
        return ModelShape(made.parameters, count_flops_per_token(sweep, made))

    return design.list_points(model)


def build_budget_design(sweep: Sweep, data: SweepTokens) -> BudgetDesign | None:
    """Design the trials of a sweep with a budget, or return None for another design.

    The factors of a rate search are not known yet, so the costs are those without it.
    """
    design = sweep.design
    if not isinstance(design, OptimalDesign):
        return None
    budgets = [
        convert_to_flops(sweep, budget, design.flops_per_second) for budget in design.parsed_budgets
    ]
    find_model = functools.cache(lambda parameters: find_sweep_model(sweep, parameters, data))

    def build_trial(
        parameters: float, tokens: Sequence[float]
    ) -> tuple[Sequence[float], CandidateTrial] | None:
        planned = _plan_candidate(sweep, find_model(parameters), parameters, tokens, data)
        if planned is None:
            return None
        kept, trial = planned
        lengths = tuple(float(length.tokens) for length in trial.lengths)
        size = float(trial.ladder_model.parameters)
        return kept, CandidateTrial(size, lengths, _count_trial_flops(sweep, trial))

    guess = math.log(data.vocabulary)
    return design_trials(design, budgets, sweep.seeds[0], guess, build_trial)


def _plan_candidate(
    sweep: Sweep, model: LadderModel, parameters: float, tokens: Sequence[float], data: SweepTokens
) -> tuple[Sequence[float], Trial] | None:
    """Plan a trial and return its lengths, or None if its runs are too short or too long.

    The shortest runs are left out where they would need a smaller batch than the rule's, so that
    all trials follow one rule. If no length has the rule's batch, all lengths are kept.
    """
    if max(tokens) > sweep.batches.epochs * data.unique_tokens:
        return None
    factors = RateBatchPair(sweep.rate_factor, sweep.batch_factor)
    fallback = None
    for shortest in range(len(tokens)):
        kept = tokens[shortest:]
        points = [DesignPoint(parameters, length) for length in kept]
        try:
            trial = plan_trial(sweep, model, sweep.seeds[0], points, factors)
        except ConfigError:  # too few steps
            continue
        if trial.batch >= trial.ruled_batch:
            return kept, trial
        fallback = fallback or (kept, trial)
    return fallback


def _count_trial_flops(sweep: Sweep, trial: Trial) -> float:
    """Return the exact number of operations of all runs of `trial`."""
    return sum(
        _count_flops(sweep, trial, end) - _count_flops(sweep, trial, begin)
        for begin, end in _list_segments(sweep, trial)
    )


def estimate_sweep(sweep: Sweep, _: object) -> dict[str, float | str]:
    """Return the estimate of what `sweep` will train, without a search for its rates.

    Returns an empty mapping before the tokens exist. Raises InputError if the sweep cannot work.
    """
    if not storage.exists(storage.join(sweep.tokens, MANIFEST)):
        return {}
    data = read_sweep_tokens(sweep)
    designed = build_budget_design(sweep, data)
    trials = plan(
        sweep,
        list_design_points(sweep, data, designed),
        data,
        RateBatchPair(sweep.rate_factor, sweep.batch_factor),
    )
    smaller = describe_smaller_batches(sweep, trials)
    made = [(trial, begin, end) for trial in trials for begin, end in _list_segments(sweep, trial)]
    return {
        "trials": len(trials),
        "runs": sum(len(trial.lengths) for trial in trials),
        "parameters_least": min(trial.ladder_model.parameters for trial in trials),
        "parameters_most": max(trial.ladder_model.parameters for trial in trials),
        "unique_tokens": data.unique_tokens,
        "epochs_most": max(trial.trunk.tokens for trial in trials) / data.unique_tokens,
        "flops": sum(
            _count_flops(sweep, trial, end) - _count_flops(sweep, trial, begin)
            for trial, begin, end in made
        ),
        "flops_by_6nd": sum(
            count_flops_6nd(
                trial.ladder_model.parameters, float(_count_positions(sweep, trial, end - begin))
            )
            for trial, begin, end in made
        ),
        **({"smaller_batches": smaller} if smaller else {}),
        **(_describe_stages(sweep, designed) if designed else {}),
    }


def _describe_stages(sweep: Sweep, designed: BudgetDesign) -> dict[str, str]:
    """Return a line for each stage, keyed by the name of the fact."""
    speed = designed.design.flops_per_second
    return {
        f"stage_{number}": stage.describe(describe_cost(sweep, stage.flops, speed))
        for number, stage in enumerate(designed.stages, 1)
    }


def _list_segments(sweep: Sweep, trial: Trial) -> Iterator[tuple[int, int]]:
    """Yield the first and last step of each part that is trained: the trunk, then the decays."""
    yield 0, trial.trunk.steps
    for length in trial.lengths[:-1]:
        yield count_stable_steps(sweep, trial, length), length.steps


def _count_flops(sweep: Sweep, trial: Trial, steps: int) -> float:
    """Return the exact number of operations of the first `steps` steps of `trial`."""
    flops_per_token = count_flops_per_token(sweep, trial.ladder_model, steps) if steps else 0.0
    return flops_per_token * _count_positions(sweep, trial, steps)


def _count_positions(sweep: Sweep, trial: Trial, steps: int) -> int:
    return steps * trial.batch * sweep.batches.sequence_length


def compute_usd_an_hour(sweep: Sweep) -> float:
    """Return the price of one trial in USD per hour, or NaN if no instance is named.

    Raises ConfigError if there is no such instance.
    """
    wanted = sweep.trials
    if wanted.instance is None:
        return math.nan
    machine = hardware.load().find_instance(wanted.instance)
    share = wanted.gpus / machine.devices if wanted.gpus else wanted.cpus / machine.vcpus
    return share * machine.usd


def convert_to_flops(sweep: Sweep, budget: SweepBudget, speed: float | None) -> float:
    """Convert a budget to FLOPs.

    `speed` is the FLOP/s that one trial reaches; None: the usual share of the peak of
    `trials.instance`. Raises ConfigError if the speed or the price is unknown.
    """
    if budget.unit == "FLOPs":
        return budget.amount
    hours = budget.amount
    if budget.unit == "USD":
        price = compute_usd_an_hour(sweep)
        if not price > 0:
            raise ConfigError(
                f"design.budgets: {budget.amount:g}USD needs the price of a trial; set "
                "trials.instance to an instance of the table of hardware, or give FLOPs or h"
            )
        hours = budget.amount / price
    speed = speed or _estimate_speed(sweep)
    if speed is None:
        raise ConfigError(
            f"design.budgets: {budget.amount:g}{budget.unit} needs the speed of a trial; set "
            "design.flops_per_second as measured, or trials.instance (and trials.gpus, if it has "
            "GPUs), or give FLOPs"
        )
    return hours * 3600 * speed


def describe_cost(sweep: Sweep, flops: float, speed: float | None) -> str:
    """Describe the hours of one trial and the dollars that `flops` take, as far as known.

    `speed` is as for `convert_to_flops`.
    """
    speed = speed or _estimate_speed(sweep)
    if speed is None:
        return ""
    hours = flops / speed / 3600
    price = compute_usd_an_hour(sweep)
    dollars = "" if math.isnan(price) else f", {format_usd(hours * price)} USD"
    return f", {hours:,.3g} h of one trial{dollars}"


def _estimate_speed(sweep: Sweep) -> float | None:
    """Return the FLOP/s of one trial at the usual share of its devices' peak.

    Returns None if `trials.instance` is not set, or if trials use none of the instance's GPUs: the
    table of hardware does not have the speed of a GPU instance's CPUs.
    """
    wanted = sweep.trials
    if wanted.instance is None:
        return None
    table = hardware.load()
    device = table.find_device(table.find_instance(wanted.instance).device)
    devices = wanted.gpus if device.accelerator else wanted.cpus
    if not devices:
        return None
    precision = sweep.training.precision.resolve(device.computes_narrow)
    return devices * device.find_peak(precision.peak) * USUAL_SHARE
