"""Best split of compute into parameters and tokens, by every approach of a law.

N*(C) comes from the minima that the runs show themselves, where they do: from parabolas of equal
compute, or from the envelope of training curves. A form only interpolates between its runs, and
some cannot bend: over-training fixes N* ~ C^0.5. So the form decides only where no approach does,
and the interval of N* always contains what the form and all approaches say.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from trainrig.scaling.laws.law import Approach, Interval, Law, compute_percentiles, join_intervals
from trainrig.scaling.laws.law_formats import format_count
from trainrig.scaling.laws.law_forms import FLOPS_PER_PARAMETER_AND_TOKEN, Array, Form, Optimum

LEADING = ("isoflop", "envelope")  # approaches that decide N*(C), in this order
LEAST_MINIMA = 3  # a line through fewer minima leaves nothing to judge it by
APART = 1.5  # factor between the approaches' N* that a plan reports


@dataclass(frozen=True)
class Steered:
    """Form whose best size at each compute is on a line through measured minima."""

    form: Form
    log_coefficient: float  # ln k of N* = k C^a
    exponent: float  # a

    def compute_loss(
        self, parameters: ArrayLike, tokens: ArrayLike, unique_tokens: ArrayLike | None = None
    ) -> Array:
        """Return the loss of the form in nats per token."""
        return self.form.compute_loss(parameters, tokens, unique_tokens)

    def compute_optimum(self, flops: ArrayLike) -> Optimum:
        """Return the size on the line for `flops` = 6ND, with the form's loss there."""
        budget = np.asarray(flops, dtype=np.float64)
        parameters = np.asarray(np.exp(self.log_coefficient + self.exponent * np.log(budget)))
        tokens = budget / FLOPS_PER_PARAMETER_AND_TOKEN / parameters
        return Optimum(parameters, tokens, self.compute_loss(parameters, tokens))


Splitter = Form | Steered


def find_leading(law: Law) -> Approach | None:
    """Return the approach that N*(C) comes from, or None if it comes from the form.

    A law of repeated data uses its form: the minima of its runs are minima over repeated tokens.
    """
    if law.form.kind == "DataConstrained":
        return None
    named = {approach.name: approach for approach in law.approaches}
    for name in LEADING:
        approach = named.get(name)
        if approach and approach.draws and approach.minima >= LEAST_MINIMA:
            return approach
    return None


def name_leading(law: Law) -> str:
    """Return the name of the approach or form that N*(C) comes from."""
    leading = find_leading(law)
    return leading.name if leading else law.form.kind


def steer(law: Law, form: Form | None = None) -> Splitter:
    """Return `form` (by default the law's) with the best sizes that the law's runs show."""
    form = form or law.form
    leading = find_leading(law)
    return form if leading is None else _follow(leading, form)


def compute_sizes(law: Law, flops: float) -> dict[str, float]:
    """Return N* at `flops` by each approach: those that lead, the form, and forms as good."""
    found = {
        approach.name: float(_follow(approach, law.form).compute_optimum(flops).parameters)
        for approach in _list_lines(law)
    }
    forms = (law.form, *law.rivals)
    found |= {form.kind: float(form.compute_optimum(flops).parameters) for form in forms}
    return found


def describe_disagreement(law: Law, flops: float) -> str:
    """Return how far the approaches' N* at `flops` are apart, or an empty string if not far."""
    sizes = compute_sizes(law, flops)
    if max(sizes.values()) <= APART * min(sizes.values()):
        return ""
    named = ", ".join(f"{format_count(size)} by {name}" for name, size in sizes.items())
    return f"the approaches disagree about the best size at {flops:.3g} FLOPs: {named}"


def compute_split_interval(
    law: Law,
    flops: float,
    quantity: Callable[[Optimum], Array | float],
    of_form: Callable[[Form], float] | None = None,
) -> Interval | None:
    """Return an interval of `quantity` of the best split of `flops`, or None if the law gives none.

    It covers the draws of the form and of each approach, and their estimates. `of_form` computes
    the quantity by a form, where that is not the form's own optimum. A law that assumes the best
    ratio has no interval: its draws all share the assumption.
    """
    if law.assumed:
        return None

    def by_splitter(splitter: Splitter) -> float:
        return float(quantity(splitter.compute_optimum(flops)))

    by_form = of_form or by_splitter
    intervals = [law.compute_interval(by_form)]
    estimates = [by_form(form) for form in (law.form, *law.rivals)]
    for approach in _list_lines(law):
        estimates.append(by_splitter(_follow(approach, law.form)))
        if approach.draws:
            drawn = np.array([by_splitter(Steered(law.form, *draw)) for draw in approach.draws])
            intervals.append(compute_percentiles(drawn))
    if all(interval is None for interval in intervals):
        return None
    points = [Interval(low=value, high=value) for value in estimates]
    return join_intervals([*intervals, *points])


def _list_lines(law: Law) -> list[Approach]:
    """Return the approaches that give N*(C), also those whose draws give no interval."""
    if law.form.kind == "DataConstrained":
        return []
    return [approach for approach in law.approaches if approach.parameters_coefficient is not None]


def _follow(approach: Approach, form: Form) -> Steered:
    assert approach.parameters_exponent is not None  # an approach with a coefficient has one
    assert approach.parameters_coefficient is not None
    coefficient = float(np.log(approach.parameters_coefficient))
    return Steered(form, coefficient, approach.parameters_exponent.value)
