"""A layout plan as lines for a terminal, and as JSON data."""

from collections.abc import Iterator
from typing import Any

from trainrig.estimate.cost_estimate import format_hours
from trainrig.estimate.layout.layout_search import Found, LayoutPlan
from trainrig.estimate.layout.layouts import DeviceLayout
from trainrig.estimate.step_memory import RESERVE
from trainrig.parallel.activation_budget import GIB
from trainrig.scaling.laws.law_formats import format_count, format_four_digits, format_usd

AXES = ("replicate", "shard", "tensor", "pipeline", "context", "expert")


def describe_layouts(plan: LayoutPlan) -> Iterator[str]:
    """Yield the lines that describe a layout plan.

    They are the number of layouts searched, the ten best, the best that the trainer supports, how
    the best one spends its step, and the cost of the run.
    """
    subject = plan.subject
    cluster = plan.cluster
    links = cluster.inside.bandwidth / 1e9
    joined = f"{links:,.0f} GB/s inside a machine of {cluster.devices_per_machine}"
    if cluster.across is not None:
        joined += f", {cluster.across.bandwidth / 1e9:,.0f} GB/s per machine between machines"
    yield (
        f"{subject.name} on {cluster.devices:,} {cluster.name} ({joined}): {plan.legal:,} legal "
        f"layouts, of which {plan.fitting:,} fit"
    )
    room = cluster.device.memory * (1 - RESERVE) / GIB
    yield (
        f"{'':>3}{'rep':>5}{'shard':>6}{'tens':>5}{'pipe':>5}{'ctx':>4}{'exp':>4}"
        f"{'micro':>6}  {'schedule':<15}{'recompute':<10}{'reshard':<8}{'reduce':<12}"
        f"{'s/step':>8}{'MFU':>7}"
        f"{'tokens/s':>10}{f'GiB/{room:.0f}':>8}  needs"
    )
    for number, found in enumerate(plan.best, 1):
        yield _format_row(str(number), found)
    if plan.runnable is not None and plan.runnable not in plan.best:
        yield _format_row("*", plan.runnable)
        yield "  * the best layout that the trainer supports for this run"
    if plan.own is not None:
        yield _format_row("=", plan.own)
        yield "  = the layout of the run file itself, as `trainrig check` reports it"
    yield from _describe_seconds(plan)
    yield from _describe_cost(plan)
    for warning in plan.warnings:
        yield f"warning: {warning}"


def _format_row(mark: str, found: Found) -> str:
    made = found.prediction
    layout = found.prediction.layout
    degrees = layout.degrees
    wants = ", ".join(found.needs) or "-"
    if found.spans is not None:
        wants += f"; tensor across machines: {found.spans:.3g} s"
    return (
        f"{mark:>3}{degrees.replicate:>5}{degrees.shard:>6}{degrees.tensor:>5}"
        f"{degrees.pipeline:>5}{degrees.context:>4}{degrees.expert:>4}{layout.micro_batch:>6}  "
        f"{format_schedule(layout):<15}{layout.recompute:<10}{layout.reshard:<8}{layout.reduce:<12}"
        f"{made.seconds.total:>8.4g}{made.mfu:>7.1%}{format_count(made.tokens_per_second):>10}"
        f"{made.memory.total / GIB:>8.1f}  {wants}"
    )


def format_schedule(layout: DeviceLayout) -> str:
    """Return the pipeline schedule as text, such as `1F1B`, `interleaved x4` or `-` for none."""
    if layout.schedule is None:
        return "-"
    return layout.schedule + (f" x{layout.chunks}" if layout.chunks > 1 else "")


def format_degrees(layout: DeviceLayout) -> str:
    """Return the degrees above 1 as text, such as `shard 32, tensor 8`."""
    found = [
        f"{axis} {getattr(layout.degrees, axis)}"
        for axis in AXES
        if getattr(layout.degrees, axis) > 1
    ]
    return ", ".join(found) or "one device"


def _describe_seconds(plan: LayoutPlan) -> Iterator[str]:
    best = plan.best[0].prediction
    parts = {name: getattr(best.seconds, name) for name in best.seconds.__dataclass_fields__}
    shares = [f"{k} {v / best.seconds.total:.1%}" for k, v in parts.items() if v > 0]
    yield f"  step time of the best layout: {', '.join(shares)}"
    sent = best.traffic.total
    yield (
        f"  a device sends per step: {sent.inside / 1e9:,.4g} GB inside its machine, "
        f"{sent.across / 1e9:,.4g} GB to other machines"
    )


def _describe_cost(plan: LayoutPlan) -> Iterator[str]:
    cost = plan.cost
    steps = plan.subject.training.steps
    watts = cost.kwh / cost.hours * 1000 if cost.hours else 0.0
    price = "no price in the hardware table"
    if cost.usd is not None:
        price = (
            f"{format_usd(cost.usd)} USD ({cost.machines:,} {cost.instance}, price of {cost.as_of})"
        )
    yield (
        f"  cost of {steps:,} steps: {format_hours(cost)}, {price}, "
        f"{format_four_digits(cost.kwh)} kWh at {watts / 1e3:,.4g} kW"
    )


def build_plan_data(plan: LayoutPlan) -> dict[str, Any]:
    """Return the plan as JSON data, in seconds, bytes and shares."""
    subject = plan.subject
    cluster = plan.cluster
    return {
        "run": subject.name,
        "device": cluster.name,
        "devices": cluster.devices,
        "of_a_machine": cluster.devices_per_machine,
        "legal": plan.legal,
        "fitting": plan.fitting,
        "layouts": [build_layout_data(found) for found in plan.best],
        "runnable": None if plan.runnable is None else build_layout_data(plan.runnable),
        "own": None if plan.own is None else build_layout_data(plan.own),
        "cost": plan.cost.model_dump(mode="json"),
        "warnings": list(plan.warnings),
    }


def build_layout_data(found: Found) -> dict[str, Any]:
    """Return one layout as JSON data."""
    made = found.prediction
    layout = found.prediction.layout
    return {
        **{axis: getattr(layout.degrees, axis) for axis in AXES},
        "micro_batch": layout.micro_batch,
        "schedule": layout.schedule,
        "stages_of_a_device": layout.chunks,
        "recompute": layout.recompute,
        "reshard": layout.reshard,
        "reduce": layout.reduce,
        "sequence_parallel": layout.degrees.tensor > 1 and layout.sequence_parallel,
        "step_seconds": made.seconds.total,
        "seconds": dict(vars(made.seconds)),
        "tokens_per_second": made.tokens_per_second,
        "mfu": made.mfu,
        "memory_bytes": made.memory.total,
        "memory": dict(vars(made.memory)),
        "sent_bytes": {
            name: {"inside": sent.inside, "across": sent.across}
            for name, sent in vars(made.traffic).items()
        },
        "needs": list(found.needs),
        "seconds_of_spanning": found.spans,
    }
