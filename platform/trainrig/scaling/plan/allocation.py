"""How compute is best divided between parameters and tokens, whatever is given.

What any form answers by its `compute_optimum` for a budget is here answered for a size, for tokens,
for tokens of which there are only so many, and for a model that is to serve after it was trained.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trainrig.errors import ConfigError
from trainrig.flops import count_flops_6nd
from trainrig.scaling.laws.forms import DataConstrained, Form, Optimum, OverTraining, Parametric
from trainrig.scaling.laws.published import LAWS

# Of budgets that are searched: below the first a single step, above the second beyond Earth.
_LOG_FLOPS = (math.log(1e3), math.log(1e40))
# For a model that serves, sizes from a hundred thousandth of the best for training alone up to it.
_SMALLEST_SHARE = 1e-5
FLOPS_PER_SERVED = 2  # of a parameter and token: the forward pass alone (arXiv:2401.00448, eq. 2)


@dataclass(frozen=True)
class Allocation:
    """A size and tokens to train it on."""

    parameters: float  # as the law counts them
    tokens: float  # seen, repeats included

    @property
    def flops(self) -> float:
        """By 6ND."""
        return count_flops_6nd(self.parameters, self.tokens)


def to_data_constrained(form: Form) -> DataConstrained:
    """`form` as a law that knows repeated tokens.

    A parametric law that was fitted without repeats gets the fading of Muennighoff et al.
    (arXiv:2305.16264), the only one published. Raises ConfigError for a form that has no such one.
    """
    if isinstance(form, DataConstrained):
        return form
    base = form.parametric if isinstance(form, OverTraining) else form
    if not isinstance(base, Parametric):
        raise ConfigError(
            f"a {form.kind} law cannot tell repeated tokens from new ones; leave out "
            "--tokens-available, or use a Parametric or DataConstrained law"
        )
    published = LAWS["muennighoff"].form
    assert isinstance(published, DataConstrained)
    return DataConstrained(base=base, r_d=published.r_d, r_n=published.r_n)


def allocate_for_flops(form: Form, flops: float, unique_tokens: float | None = None) -> Allocation:
    """The least loss for a budget, by 6ND, with so many different tokens (None: no end of them)."""
    found = _find_optimum(form, flops, unique_tokens)
    return Allocation(float(found.parameters), float(found.tokens))


def allocate_for_parameters(form: Form, parameters: float) -> Allocation:
    """The budget for which `parameters` are best. Raises ConfigError if there is none."""
    return _find_budget(form, lambda found: float(found.parameters), parameters, "parameters")


def allocate_for_tokens(form: Form, tokens: float) -> Allocation:
    """The budget for which `tokens` are best. Raises ConfigError if there is none."""
    return _find_budget(form, lambda found: float(found.tokens), tokens, "tokens")


def allocate_for_serving(
    form: Form, trained: Allocation, served: float, unique_tokens: float | None = None
) -> Allocation:
    """The cheapest model as good as `trained`, with the `served` tokens that it is to read and
    write counted in (Sardana et al. 2024, arXiv:2401.00448, equation 3).

    The least 6ND + 2N x served with the loss of `trained`; with nothing served, `trained` itself,
    which is the closed form where it came from one.
    """
    if served == 0:
        return trained
    loss = compute_allocation_loss(form, trained, unique_tokens)

    def cost(log_parameters: float) -> float:
        parameters = math.exp(log_parameters)
        tokens = find_tokens_reaching(form, loss, parameters, unique_tokens)
        return math.log(
            count_flops_6nd(parameters, tokens) + FLOPS_PER_SERVED * parameters * served
        )

    # Below some size no tokens reach the loss, and the cost is infinite: a grid first.
    top = math.log(trained.parameters)
    grid = np.linspace(top + math.log(_SMALLEST_SHARE), top, 400)
    best = int(np.argmin([cost(each) for each in grid]))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    from scipy.optimize import minimize_scalar  # slow to import, as below

    found = minimize_scalar(cost, bounds=around, method="bounded", options={"xatol": 1e-9})
    parameters = math.exp(found.x)
    return Allocation(parameters, find_tokens_reaching(form, loss, parameters, unique_tokens))


def compute_allocation_loss(
    form: Form, allocation: Allocation, unique_tokens: float | None = None
) -> float:
    """Nats per token."""
    return float(form.compute_loss(allocation.parameters, allocation.tokens, unique_tokens))


def find_tokens_reaching(
    form: Form, loss: float, parameters: float, unique_tokens: float | None = None
) -> float:
    """The tokens that bring `parameters` down to `loss`; inf where none do."""

    def above(log_tokens: float) -> float:
        return float(form.compute_loss(parameters, math.exp(log_tokens), unique_tokens)) - loss

    low, high = math.log(1.0), math.log(1e30)
    if above(high) > 0:
        return math.inf
    from scipy.optimize import brentq

    return math.exp(brentq(above, low, high, xtol=1e-13, rtol=1e-14))


def _find_optimum(form: Form, flops: float, unique_tokens: float | None = None) -> Optimum:
    if unique_tokens is not None:
        return to_data_constrained(form).compute_optimum(flops, unique_tokens)
    return form.compute_optimum(flops)


def _find_budget(
    form: Form, quantity: Callable[[Optimum], float], wanted: float, unit: str
) -> Allocation:
    def above(log_flops: float) -> float:
        return math.log(quantity(form.compute_optimum(math.exp(log_flops))) / wanted)

    low, high = _LOG_FLOPS
    if not above(low) < 0 < above(high):
        raise ConfigError(
            f"no budget makes {wanted:.3g} {unit} the best choice under this law, which lets "
            f"{unit} grow as compute to the power {_measure_exponent(above):.3g}"
        )
    from scipy.optimize import brentq

    found = form.compute_optimum(math.exp(brentq(above, low, high, xtol=1e-13, rtol=1e-14)))
    return Allocation(float(found.parameters), float(found.tokens))


def _measure_exponent(above: Callable[[float], float]) -> float:
    low, high = _LOG_FLOPS
    return (above(high) - above(low)) / (high - low)
