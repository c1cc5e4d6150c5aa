"""Warnings that a user must read before relying on a plan."""

from collections.abc import Iterator

from trainrig.estimate.cost import Cost
from trainrig.flops import count_flops_6nd
from trainrig.scaling.laws.figure_format import format_usd
from trainrig.scaling.laws.law import FittedRange, Law
from trainrig.scaling.plan.plan import Placement

# Largest relative difference from the request, of size or cost, that causes no warning.
NEAR = 0.05


def find_extrapolations(law: Law, parameters: float, tokens: float) -> Iterator[str]:
    """Yield one line for each quantity outside of the range of the law's runs, with the factor."""
    ranges = law.ranges
    if ranges is None:
        yield f"The law '{law.name}' does not record the runs that it was fitted to."
        return
    for quantity, value, span in (
        ("compute by 6ND", count_flops_6nd(parameters, tokens), ranges.flops),
        ("parameters", parameters, ranges.parameters),
        ("tokens", tokens, ranges.tokens),
        ("tokens a parameter", tokens / parameters, ranges.tokens_per_parameter),
    ):
        yield from _describe_extrapolation(quantity, value, span)


def _describe_extrapolation(what: str, value: float, span: FittedRange) -> Iterator[str]:
    if value > span.greatest:
        yield (
            f"Extrapolated: {what}, {value:.3g}, {_format_times(value / span.greatest)} the "
            f"greatest of the law's runs ({span.greatest:.3g})."
        )
    elif value < span.least:
        yield (
            f"Extrapolated: {what}, {value:.3g}, {_format_times(span.least / value)} below the "
            f"least of the law's runs ({span.least:.3g})."
        )


def _format_times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor >= 10 else f"{factor:.2g} times"


def find_decoder_warnings(wanted: float, found: float) -> Iterator[str]:
    """Yield a warning if the nearest decoder differs from the size that the law wants."""
    if abs(found / wanted - 1) > NEAR:
        yield (
            f"The nearest model has {found:.3g} parameters, {found / wanted:.2g} times the best "
            f"size of {wanted:.3g}."
        )


def find_placement_warnings(placement: Placement, devices: int) -> Iterator[str]:
    """Yield a warning if no layout fits on the devices."""
    if placement.fits:
        return
    room = placement.room / 2**30
    least = placement.memory / 2**30
    needed = placement.devices_needed
    advice = (
        f"Use {needed:,} devices"
        if needed
        else "More devices do not help, even with one sequence on each"
    )
    yield (
        f"The model fits {devices:,} devices in no layout: it needs {least:,.1f} GiB at least on "
        f"each device, which has {room:,.1f} GiB. {advice}."
    )


def find_budget_warnings(asked: float | None, cost: Cost, serves: bool) -> Iterator[str]:
    """Yield a warning if the run costs more than the budget."""
    if asked is None or cost.usd is None or cost.usd <= asked * (1 + NEAR):
        return
    why = (
        "a model for serving is trained longer than is best for training alone"
        if serves
        else "machines are rented whole, so some devices are paid but unused; set --devices"
    )
    yield (
        f"The run costs {format_usd(cost.usd)} USD, more than the budget of "
        f"{format_usd(asked)} USD: {why}."
    )


def find_repeat_warnings(tokens: float, there: float) -> str:
    """Return the warning that tokens repeat under a law that counts repeats as new tokens."""
    return (
        f"The run sees the {there:,.0f} tokens of the folder {tokens / there:.3g} times, and this "
        "law counts all of them as new, so the loss will be higher than predicted."
    )
