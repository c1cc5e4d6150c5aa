"""A plan as lines for a terminal, and the table of best sizes."""

from collections.abc import Iterator

from trainrig.estimate.cost_estimate import USUAL_SHARE, format_hours
from trainrig.flops import count_flops_6nd
from trainrig.parallel.recompute import Full, Selective
from trainrig.scaling.laws import best_split
from trainrig.scaling.laws.law import Interval, Law
from trainrig.scaling.laws.law_formats import (
    format_count,
    format_flops,
    format_four_digits,
    format_loss,
    format_usd,
    name_objective,
)
from trainrig.scaling.laws.published_laws import HOFFMANN_SIZES
from trainrig.scaling.plan import allocation
from trainrig.scaling.plan.plan_schema import Placement, ScalingPlan

GIB = 2**30
_WIDTH = 22
_SIZES = (400e6, 1e9, 10e9, 67e9, 175e9, 280e9, 520e9, 1e12, 10e12)
_ASKED = {
    "flops": "{:.3g} FLOPs",
    "gpu_days": "{:,.4g} device days",
    "budget_usd": "{:,.2f} USD",
    "parameters": "{:.3g} parameters",
    "tokens": "{:.3g} tokens",
}


def describe_plan(plan: ScalingPlan) -> Iterator[str]:
    """Yield the lines that describe a plan, with doubts and warnings before the figures."""
    yield f"{plan.law}: {plan.law_source}"
    if plan.doubt:
        yield f"! {plan.doubt}"
    kind = "plan" if plan.doubt else "best plan"
    yield f"{kind} for {_ASKED[plan.target].format(plan.asked)}"
    yield from (f"! {warning}" for warning in plan.warnings)
    yield ""
    for name, text in (
        *_describe_size(plan),
        *_describe_data(plan),
        *_describe_recipe(plan),
        *_describe_cost(plan),
    ):
        yield f"  {name:<{_WIDTH}}{text}"
    yield ""
    yield from _describe_memory(plan)
    yield ""
    yield from _describe_assumptions(plan)


def _describe_size(plan: ScalingPlan) -> Iterator[tuple[str, str]]:
    size = plan.size
    yield (
        "parameters N",
        f"{format_count(size.parameters)} {plan.parameters_count}"
        f"{_format_interval(size.parameters_interval)}: {size.non_embedding:,} in layers, "
        f"{size.embedding:,} in the embedding",
    )
    yield "tokens D", f"{format_count(size.tokens)}{_format_interval(size.tokens_interval)}"
    yield "D/N", f"{size.tokens_per_parameter:.3g}"
    interval = plan.loss_interval
    uncertainty = _format_interval(interval) if interval else f" (no interval: {plan.no_interval})"
    yield "loss", f"{format_loss(plan.loss)} nats per token{uncertainty}"
    yield "FLOPs", f"{format_flops(size.flops)} exact, {format_flops(size.flops_6nd)} by 6ND"
    if plan.objective:
        yield (
            "objective",
            f"{name_objective(plan.objective)}; losses of other objectives are not comparable",
        )
    shape = plan.model.shape
    kinds = {"Encoder": "encoder", "EncoderDecoder": "encoder and decoder, each"}
    yield (
        kinds.get(plan.model.kind, "decoder"),
        f"{shape.layers} layers of {shape.channels} channels, {shape.heads} heads, "
        f"{shape.feedforward_channels} between, vocabulary {shape.vocabulary:,}",
    )


def _describe_data(plan: ScalingPlan) -> Iterator[tuple[str, str]]:
    if plan.data:
        data = plan.data
        yield (
            "epochs",
            f"{data.epochs:.3g} of {format_count(data.unique_tokens)} tokens, worth "
            f"{format_count(data.worth)} new ones; with new tokens the loss would be "
            f"{format_loss(data.loss_if_new)}",
        )
        yield (
            "data wall",
            f"no number of epochs is worth more than {format_count(data.wall)} new tokens "
            f"(R_D* {data.fading:.3g})",
        )
    if plan.service:
        service = plan.service
        parameters, tokens = service.best_trained
        yield (
            "serving",
            f"{format_count(service.tokens_served)} tokens: saves {service.saved:.2%} of all "
            "compute compared with the model that is best for training alone "
            f"({format_count(parameters)}, {format_count(tokens)} tokens); training takes "
            f"{service.training_factor:.3g} times the compute of that model",
        )


def _describe_recipe(plan: ScalingPlan) -> Iterator[tuple[str, str]]:
    recipe = plan.recipe
    saving = plan.saving
    yield (
        "batch",
        f"{recipe.global_batch:,} sequences of {recipe.sequence_length:,} = "
        f"{format_count(recipe.batch_tokens)} tokens, {recipe.steps:,} steps",
    )
    yield (
        "learning rate",
        f"{recipe.rate:.2g}; rate and batch by the rule {recipe.rule.kind} (fitted on "
        f"{recipe.rule.fitted_on})",
    )
    yield (
        "checkpoints",
        f"every {saving.every:,} steps = {_format_duration(saving.seconds)}; each stops training "
        f"for {saving.stalled:.2g} s, and a fault is expected every "
        f"{saving.hours_between_faults:,.3g} h",
    )


def _describe_cost(plan: ScalingPlan) -> Iterator[tuple[str, str]]:
    cost = plan.cost
    yield (
        "time",
        f"{format_hours(cost)} on {cost.devices:,} {cost.device}, "
        f"{format_four_digits(cost.device_days)} device days",
    )
    if cost.usd is not None:
        spot = f", {format_usd(cost.usd_spot)} on spot" if cost.usd_spot is not None else ""
        yield (
            "money",
            f"{format_usd(cost.usd)} USD{spot}: {cost.machines:,} {cost.instance} "
            f"(price of {cost.as_of})",
        )
    else:
        yield "money", "no price: the hardware table has no instance with this device"
    yield "energy", f"{format_four_digits(cost.kwh)} kWh"


def _describe_memory(plan: ScalingPlan) -> Iterator[str]:
    placement = plan.placement
    words = describe_placement(placement)
    if placement.fits:
        yield (
            f"  {'layout':<{_WIDTH}}{words}: {placement.memory / GIB:,.1f} of "
            f"{placement.room / GIB:,.1f} GiB per device, micro-batches of "
            f"{plan.recipe.micro_batch} x {plan.recipe.sequence_length:,} tokens"
        )
    else:
        yield f"  {'layout':<{_WIDTH}}none fits; nearest: {words}"
    yield f"  {'GiB, ZeRO stage':<36}{'kept: all':>12}{'selective':>12}{'full':>12}  recomputed"
    for row in placement.table:
        cells = "".join(f"{size / GIB:>12,.1f}" for size in row.bytes_by_recompute.values())
        yield f"  {row.layout:<36}{cells}{'' if row.offered else '  (not supported here)'}"


def describe_placement(placement: Placement) -> str:
    """Return a short description of the layout, such as `FSDP, deterministic`."""
    parallel = placement.parallel
    words: list[str] = [parallel.kind]
    if parallel.groups is not None:
        words.append(f"of {parallel.groups} replicas")
    words.append("deterministic" if placement.deterministic else "not deterministic")
    if parallel.reshard == "layer":
        words.append("layer by layer")
    if parallel.by_micro_batch:
        words.append("reducing each micro-batch")
    recompute = placement.recompute
    if isinstance(recompute, Full):
        words.append("recomputing every layer")
    elif isinstance(recompute, Selective):
        words.append("recomputing cheap operations")
    return f"{words[0]}, " + ", ".join(words[1:])


def _describe_assumptions(plan: ScalingPlan) -> Iterator[str]:
    assumed = plan.assumptions
    yield (
        f"Assumed: {_describe_share(plan)}; a machine draws {assumed.machine:g} "
        f"times its devices, the building {assumed.building:g} times its machines; a fault every "
        f"{assumed.device_hours_between_faults:,.0f} device hours; checkpoints copied at "
        f"{assumed.copied_per_second / 1e9:g} GB/s a device."
    )


def _describe_share(plan: ScalingPlan) -> str:
    """Return in words which share of the peak the hours of `plan` assume."""
    given = plan.assumptions.utilisation
    if given is not None:
        return f"{given:.0%} of the peak"
    if plan.cost.predicted:
        return "the time that is predicted for the layout, with the middle 80% of published runs"
    return f"{USUAL_SHARE:.0%} of the peak"


def describe_size_table(law: Law) -> Iterator[str]:
    """Yield a table of the best compute and tokens for models of 400M to 10T parameters by `law`.

    For Hoffmann's law, the values printed in the paper are added.
    """
    yield f"{law.name}: {law.source}"
    header = f"{'N':>8}{'FLOPs':>11}{'D':>9}{'D/N':>8}{'loss':>8}"
    printed = law.name.startswith("hoffmann")
    yield header + ("   as printed, approach 1, 2, 3: FLOPs, D" if printed else "")
    for size in _SIZES:
        best = allocation.allocate_for_parameters(best_split.steer(law), size)
        reached = allocation.compute_allocation_loss(law.form, best)
        row = (
            f"{format_count(size):>8}{count_flops_6nd(size, best.tokens):>11.2e}"
            f"{format_count(best.tokens):>9}{best.tokens / size:>8.3g}{format_loss(reached):>8}"
        )
        yield row + (_format_as_printed(size) if printed else "")


def _format_as_printed(size: float) -> str:
    found = next(row for row in HOFFMANN_SIZES if row.parameters == size)
    return "".join(
        f"   {flops:.2e} {format_count(tokens):>6}" for flops, tokens in found.approaches
    )


def _format_interval(interval: Interval | None) -> str:
    return f" {interval}" if interval else ""


def _format_duration(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:.3g} h"
    return f"{seconds / 60:.3g} min" if seconds >= 60 else f"{seconds:.3g} s"
