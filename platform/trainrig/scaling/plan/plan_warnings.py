"""What a reader of a plan has to be told before believing it."""

from collections.abc import Iterator

from trainrig.estimate.cost import Cost
from trainrig.flops import six_n_d
from trainrig.scaling.laws.figure_format import usd
from trainrig.scaling.laws.law import FittedRange, Law
from trainrig.scaling.plan.plan import Placement

# Of what was asked for, that the decoder from the ladder may be off without a word.
NEAR = 0.05


def beyond(law: Law, parameters: float, tokens: float) -> Iterator[str]:
    """One line for each quantity that lies outside of the law's runs, with the factor."""
    ranges = law.ranges
    if ranges is None:
        yield f"The law '{law.name}' does not say on which runs it was fitted."
        return
    for what, value, span in (
        ("compute by 6ND", six_n_d(parameters, tokens), ranges.flops),
        ("parameters", parameters, ranges.parameters),
        ("tokens", tokens, ranges.tokens),
        ("tokens a parameter", tokens / parameters, ranges.tokens_per_parameter),
    ):
        yield from _outside(what, value, span)


def _outside(what: str, value: float, span: FittedRange) -> Iterator[str]:
    if value > span.greatest:
        yield (
            f"Extrapolated: {what}, {value:.3g}, {_times(value / span.greatest)} the greatest of "
            f"the law's runs ({span.greatest:.3g})."
        )
    elif value < span.least:
        yield (
            f"Extrapolated: {what}, {value:.3g}, {_times(span.least / value)} below the least of "
            f"the law's runs ({span.least:.3g})."
        )


def _times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor >= 10 else f"{factor:.2g} times"


def of_decoder(wanted: float, found: float) -> Iterator[str]:
    """Where the ladder has no decoder of the size that the law wants."""
    if abs(found / wanted - 1) > NEAR:
        yield (
            f"The nearest decoder has {found:.3g} parameters, {found / wanted:.2g} times the "
            f"{wanted:.3g} that are best."
        )


def of_placement(placement: Placement, devices: int) -> Iterator[str]:
    """Where no layout fits."""
    if placement.fits:
        return
    room, least = placement.room / 2**30, placement.memory / 2**30
    needed = placement.devices_needed
    what = f"{needed:,} would do" if needed else "nor does it on more, one sequence on each"
    yield (
        f"It fits no layout that runs accept on {devices:,} devices: {least:,.1f} GiB at least, of "
        f"{room:,.1f} GiB each; {what}."
    )


def of_budget(asked: float | None, cost: Cost, serves: bool) -> Iterator[str]:
    """Where there is less money than it takes."""
    if asked is None or cost.usd is None or cost.usd <= asked * (1 + NEAR):
        return
    why = (
        "a model that is to serve is trained longer than is best for training alone"
        if serves
        else "whole machines are paid for, and some devices have nothing to do: name --devices"
    )
    yield f"It costs {usd(cost.usd)} USD, over the {usd(asked)} asked for: {why}."


def of_repeats(tokens: float, there: float) -> str:
    """Where there are fewer tokens than a law wants that cannot tell them from repeats."""
    return (
        f"It sees the {there:,.0f} tokens of the folder {tokens / there:.3g} times, and this law "
        "takes all for new: the loss will be higher."
    )
