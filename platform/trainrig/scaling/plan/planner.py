"""Computation of a training plan from a scaling law and one given quantity.

The quantity is one of parameters, tokens, operations, device days and dollars (`PlanRequest`). A
law has one fitted form, and draws: forms fitted to resampled data, whose spread gives intervals.
The model *ladder* is the series of model sizes from which a plan chooses.
"""

import math
from collections.abc import Callable

import numpy as np

from trainrig.errors import ConfigError
from trainrig.estimate import cost_estimate
from trainrig.estimate.activation_bytes import MASTER
from trainrig.estimate.fitting_layouts import BatchShape
from trainrig.flops import count_flops_6nd, count_position_flops
from trainrig.hardware import Hardware
from trainrig.models.architecture.decoder_config import count_parameters, parameter_shapes
from trainrig.objectives.denoising.row_shapes import compute_widest_row
from trainrig.optim.named_groups import count_state_bytes
from trainrig.scaling.batch_rate_rules import round_to_sequences
from trainrig.scaling.laws import best_split
from trainrig.scaling.laws.best_split import Splitter
from trainrig.scaling.laws.law import Interval, Law
from trainrig.scaling.laws.law_formats import parse_objective
from trainrig.scaling.laws.law_forms import Array, Form, Kaplan, Optimum
from trainrig.scaling.model_ladder import LadderModel
from trainrig.scaling.plan import allocation, placement, plan_schema
from trainrig.scaling.plan.allocation import Allocation
from trainrig.scaling.plan.plan_schema import (
    PlanRequest,
    PredictedLoss,
    Recipe,
    ScalingPlan,
    Service,
    Size,
    TokenBudget,
)

CURVE_POINTS = 40  # points of the curve of predicted loss against tokens
CURVE_BEGINS = 0.02  # share of the tokens at the curve's first point
# Fewest steps that leave enough of them for warm-up and decay.
FEWEST_STEPS = 100
# Rounds in which the allocation is adjusted until its exact number of operations is the budget.
SETTLING_ROUNDS = 4
# Rounds in which the share of the peak that a plan assumes becomes the share that it reaches, and
# the relative difference that ends them.
SHARE_ROUNDS = 3
SHARE_SETTLED = 0.002


def make_plan(law: Law, request: PlanRequest, hardware: Hardware) -> ScalingPlan:
    """Make the plan for `request`; raise ConfigError if the request is impossible.

    The law divides the compute between parameters and tokens. The nearest model of the ladder is
    chosen, and operations, memory, hours and the predicted loss are those of that model and of a
    whole number of steps. A budget of money or time is spent at the share of the peak that the plan
    itself is predicted to reach, so such a plan is made several times.
    """
    share = request.assumptions.utilisation or cost_estimate.USUAL_SHARE
    plan = _make_plan_at(law, request, hardware, share)
    if request.target[0] not in ("gpu_days", "budget_usd"):
        return plan
    for _ in range(SHARE_ROUNDS):
        reached = _compute_reached_share(plan, request, hardware)
        if abs(reached / share - 1) < SHARE_SETTLED:
            break
        share = reached
        plan = _make_plan_at(law, request, hardware, share)
    # The ladder has steps of size, so the share may alternate between two of them without settling.
    # The last size is trained for as many steps as the budget pays for.
    reached = _compute_reached_share(plan, request, hardware)
    return _make_plan_at(law, request, hardware, share, reached / share)


def _compute_reached_share(plan: ScalingPlan, request: PlanRequest, hardware: Hardware) -> float:
    """Return the share of the peak that `plan` reaches on its devices."""
    peak = hardware.find_device(plan.cost.device).find_peak(request.compute)
    return plan.size.flops / (peak * plan.cost.devices * plan.cost.hours * 3600)


def _make_plan_at(
    law: Law, request: PlanRequest, hardware: Hardware, share: float, longer: float | None = None
) -> ScalingPlan:
    """Make the plan whose budget is spent at `share` of the peak, in `longer` times the steps."""
    where = placement.choose_hardware(request, hardware)
    form = (
        law.form if request.tokens_available is None else allocation.to_data_constrained(law.form)
    )
    wanted, service = _divide_budget(law, form, request, where, share)
    found = _find_ladder_model(law, request, wanted.parameters)
    batch, steps = _choose_batch(request, wanted)
    if longer is not None:  # a part of a step is left out, so that the budget is not exceeded
        exact_steps = wanted.tokens / (batch.global_batch * batch.sequence_length)
        steps = max(1, math.floor(exact_steps * longer * (1 + 1e-12)))
    tokens = float(steps * batch.global_batch * batch.sequence_length)
    counted = placement.count_parameters_for_law(law, found)
    objective = parse_objective(law.objective)
    length = request.sequence_length
    flops = count_position_flops(objective, found.model, length, steps) * tokens
    quantity = allocation.make_loss_quantity(counted, tokens, request.tokens_available)
    loss = law.combine(quantity)
    sized = plan_schema.PredictedSize(parameters=counted, tokens=tokens, loss=loss)
    plan_schema.check_supported(law, sized, request)
    rows = BatchShape(batch.global_batch, compute_widest_row(objective, length))
    placed = placement.place_model(found.model, objective, request, where, rows, flops, steps)
    priced = cost_estimate.estimate_cost(
        flops,
        hardware,
        where.device,
        placed.devices,
        request.compute,
        request.assumptions,
        where.instance,
        placed.seconds,
    )
    saved_bytes = MASTER * count_parameters(found.model).total + count_state_bytes(
        parameter_shapes(found.model), request.optimizer
    )
    data = _build_token_budget(form, request, counted, tokens)
    fit_warnings = (
        plan_schema.describe_doubt(law, sized, request.vocabulary, data),
        _describe_split_doubt(law, request, wanted),
    )
    return ScalingPlan(
        law=law.name,
        law_source=law.source,
        parameters_count=law.parameters_count,
        target=request.target[0],
        asked=request.target[1],
        size=_build_size(law, request, wanted, found, tokens, flops),
        loss=loss,
        loss_interval=law.predict_interval(quantity, counted, tokens),
        no_interval=law.no_interval,
        curve=_predict_curve(law, request, counted, tokens),
        objective=law.objective,
        model=found.model,
        recipe=_build_recipe(request, wanted, batch, placed.micro_batch, steps),
        data=data,
        service=service,
        placement=placed.placement,
        cost=priced,
        saving=cost_estimate.choose_save_interval(
            state=saved_bytes / placed.sliced,
            devices=placed.devices,
            step_seconds=priced.hours * 3600 / steps,
            steps=steps,
            assumed=request.assumptions,
        ),
        assumptions=request.assumptions,
        doubt=" ".join(warning for warning in fit_warnings if warning),
        warnings=(
            *plan_schema.find_extrapolations(law, counted, tokens),
            *plan_schema.find_decoder_warnings(wanted.parameters, counted),
            *plan_schema.find_placement_warnings(placed.placement, placed.devices),
            *plan_schema.find_budget_warnings(request.budget_usd, priced, service is not None),
        ),
    )


def _build_recipe(
    request: PlanRequest, wanted: Allocation, batch: BatchShape, micro_batch: int, steps: int
) -> Recipe:
    rate = request.rule.compute_rate(wanted.parameters, wanted.tokens)
    return Recipe(
        rule=request.rule,
        sequence_length=request.sequence_length,
        global_batch=batch.global_batch,
        micro_batch=micro_batch,
        steps=steps,
        rate=float(f"{rate:.1e}"),  # two digits
        optimizer=request.optimizer,
    )


def _build_size(
    law: Law,
    request: PlanRequest,
    wanted: Allocation,
    found: LadderModel,
    tokens: float,
    flops: float,
) -> Size:
    """Return the size of the planned run, with intervals of the best size under the law."""
    counted = placement.count_parameters_for_law(law, found)
    return Size(
        parameters=counted,
        tokens=tokens,
        parameters_interval=_compute_best_interval(law, request, wanted, lambda d: d.parameters),
        tokens_interval=_compute_best_interval(law, request, wanted, lambda d: d.tokens),
        tokens_per_parameter=tokens / counted,
        non_embedding=found.parameters,
        embedding=found.embedding_parameters,
        flops=flops,
        flops_6nd=count_flops_6nd(counted, tokens),
    )


def _divide_budget(
    law: Law, form: Form, request: PlanRequest, where: placement.PlanHardware, share: float
) -> tuple[Allocation, Service | None]:
    """Return the best allocation by the law, and what serving changes in it, if it does."""
    trained = _allocate_training(law, form, request, where, share)
    if not request.tokens_served:
        return trained, None
    served = request.tokens_served
    found = allocation.allocate_for_serving(form, trained, served, request.tokens_available)
    total_flops = [
        one.flops + allocation.FLOPS_PER_SERVED * one.parameters * served
        for one in (found, trained)
    ]
    return found, Service(
        tokens_served=served,
        best_trained=(trained.parameters, trained.tokens),
        training_factor=found.flops / trained.flops,
        saved=1 - total_flops[0] / total_flops[1],
    )


def _allocate_training(
    law: Law, form: Form, request: PlanRequest, where: placement.PlanHardware, share: float
) -> Allocation:
    target, amount = request.target
    unique = request.tokens_available
    split = best_split.steer(law, form)
    if target == "parameters":
        return allocation.allocate_for_parameters(best_split.steer(law), amount)
    if target == "tokens":
        return allocation.allocate_for_tokens(best_split.steer(law), amount)
    if target == "flops":
        return allocation.allocate_for_flops(split, amount, unique)
    device_days = amount
    if target == "budget_usd":
        device_days = cost_estimate.compute_device_days(
            amount, where.hardware, where.device, where.instance, request.devices
        )
    budget = cost_estimate.compute_affordable_flops(
        device_days, where.hardware, where.device, request.compute, share
    )
    return _settle_allocation(law, split, request, budget)


def _settle_allocation(law: Law, form: Splitter, request: PlanRequest, budget: float) -> Allocation:
    """Return the best allocation of exactly `budget` operations.

    The law counts 6 operations per parameter and token, which leaves out attention and others. So
    the budget given to the law is adjusted until the exact count agrees. The tokens then take up
    what difference remains.
    """
    found = allocation.allocate_for_flops(form, budget, request.tokens_available)
    for _ in range(SETTLING_ROUNDS):
        exact = _count_token_flops(law, request, found) * found.tokens
        found = allocation.allocate_for_flops(
            form, found.flops * budget / exact, request.tokens_available
        )
    return Allocation(found.parameters, budget / _count_token_flops(law, request, found))


def _count_token_flops(law: Law, request: PlanRequest, found: Allocation) -> float:
    """Return the exact number of training operations for each token of an allocation."""
    model = _find_ladder_model(law, request, found.parameters).model
    _, steps = _choose_batch(request, found)
    length = request.sequence_length
    return count_position_flops(parse_objective(law.objective), model, length, steps)


def _find_ladder_model(law: Law, request: PlanRequest, parameters: float) -> LadderModel:
    return placement.plan_model(law, parameters, request.vocabulary, request.sequence_length)


def _choose_batch(request: PlanRequest, wanted: Allocation) -> tuple[BatchShape, int]:
    length = request.sequence_length
    by_rule = request.rule.compute_batch(wanted.parameters, wanted.tokens)
    sequences = round_to_sequences(by_rule, length, wanted.tokens, FEWEST_STEPS)
    steps = round(wanted.tokens / (sequences * length))
    if steps < 1:
        raise ConfigError(
            f"{wanted.tokens:.3g} tokens are fewer than one sequence of {length}; plan for more, "
            "or lower `sequence_length`"
        )
    return BatchShape(sequences, length), steps


def _build_token_budget(
    form: Form, request: PlanRequest, parameters: float, tokens: float
) -> TokenBudget | None:
    """Return what repeated tokens are worth to the run, or None if its data is unlimited.

    By Muennighoff et al. (2023, arXiv:2305.16264), each repeat of a token is worth less than the
    one before. Training on all epochs is worth as much as `worth` new tokens would be; no number of
    epochs is worth more than `wall`. `fading` is their constant R_D*.
    """
    unique = request.tokens_available
    if unique is None:
        return None
    repeating = allocation.to_data_constrained(form)
    _, worth = repeating.compute_effective(parameters, tokens, unique)
    return TokenBudget(
        unique_tokens=unique,
        epochs=tokens / unique,
        worth=float(worth),
        loss_if_new=float(form.compute_loss(parameters, tokens)),
        wall=unique * (1 + repeating.r_d),
        fading=repeating.r_d,
    )


def _describe_split_doubt(law: Law, request: PlanRequest, wanted: Allocation) -> str:
    """Return the headline of a plan whose size the approaches disagree about, or ""."""
    if law.assumed:
        return f"Uncertain: {law.assumed}."
    if request.tokens_served or request.target[0] in ("parameters", "tokens"):
        return ""
    if _repeats_tokens(request, wanted):  # the form alone decides
        return ""
    apart = best_split.describe_disagreement(law, wanted.flops)
    if not apart:
        return ""
    return (
        f"Uncertain: {apart}. The plan follows {best_split.name_leading(law)}, and the interval of "
        "N contains all of them. Train runs of several sizes at a larger budget to decide."
    )


def _repeats_tokens(request: PlanRequest, wanted: Allocation) -> bool:
    """Return whether the allocation needs more tokens than the request has."""
    return request.tokens_available is not None and wanted.tokens > request.tokens_available


def _compute_best_interval(
    law: Law, request: PlanRequest, wanted: Allocation, quantity: Callable[[Optimum], Array]
) -> Interval | None:
    """Return the interval of the best size for the compute of `wanted`, over all approaches.

    Returns None if the request fixes the size, or if tokens are served: then the best size does not
    depend on the compute alone.
    """
    if request.tokens_served or request.target[0] in ("parameters", "tokens"):
        return None

    def by_form(form: Form) -> float:
        unique = None if isinstance(form, Kaplan) else request.tokens_available
        return float(quantity(allocation.find_optimum(form, wanted.flops, unique)))

    if _repeats_tokens(request, wanted):  # only forms know repeated tokens
        return None if law.assumed else law.compute_interval(by_form)
    return best_split.compute_split_interval(law, wanted.flops, quantity, by_form)


def _predict_curve(
    law: Law, request: PlanRequest, parameters: float, tokens: float
) -> tuple[PredictedLoss, ...]:
    points = []
    for seen in np.geomspace(CURVE_BEGINS * tokens, tokens, CURVE_POINTS):
        quantity = allocation.make_loss_quantity(parameters, float(seen), request.tokens_available)
        interval = law.predict_interval(quantity, parameters, float(seen))
        points.append(
            PredictedLoss(
                tokens=float(seen),
                loss=law.combine(quantity),
                low=interval.low if interval else None,
                high=interval.high if interval else None,
            )
        )
    return tuple(points)
