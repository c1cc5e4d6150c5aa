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
        yield f"The law '{law.name}' does not say on which runs it was fitted."
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
            f"The nearest decoder has {found:.3g} parameters, {found / wanted:.2g} times the "
            f"{wanted:.3g} that are best."
        )


def find_placement_warnings(placement: Placement, devices: int) -> Iterator[str]:
    """Yield a warning if no layout fits on the devices."""
    if placement.fits:
        return
    room = placement.room / 2**30
    least = placement.memory / 2**30
    needed = placement.devices_needed
    advice = f"{needed:,} would do" if needed else "nor does it on more, one sequence on each"
    yield (
        f"It fits no layout that runs accept on {devices:,} devices: {least:,.1f} GiB at least, of "
        f"{room:,.1f} GiB each; {advice}."
    )


def find_budget_warnings(asked: float | None, cost: Cost, serves: bool) -> Iterator[str]:
    """Yield a warning if the run costs more than the budget."""
    if asked is None or cost.usd is None or cost.usd <= asked * (1 + NEAR):
        return
    why = (
        "a model that is to serve is trained longer than is best for training alone"
        if serves
        else "whole machines are paid for, and some devices have nothing to do: name --devices"
    )
    yield f"It costs {format_usd(cost.usd)} USD, over the {format_usd(asked)} asked for: {why}."


def find_repeat_warnings(tokens: float, there: float) -> str:
    """Return the warning that tokens repeat under a law that counts repeats as new tokens."""
    return (
        f"It sees the {there:,.0f} tokens of the folder {tokens / there:.3g} times, and this law "
        "takes all for new: the loss will be higher."
    )
