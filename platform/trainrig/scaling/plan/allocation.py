"""Division of compute between parameters and tokens.

The `compute_optimum` of a form answers for a budget. The functions here also answer for a given
size, for given tokens, for a limited number of unique tokens, and for a model that serves after
training.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trainrig.errors import ConfigError
from trainrig.flops import count_flops_6nd
from trainrig.scaling.laws.best_split import Splitter, Steered
from trainrig.scaling.laws.law_forms import (
    DataConstrained,
    Form,
    Kaplan,
    Optimum,
    OverTraining,
    Parametric,
)
from trainrig.scaling.laws.published_laws import LAWS

# Range of budgets that are searched: from less than a single step to more than Earth could compute.
_LOG_FLOPS = (math.log(1e3), math.log(1e40))
# For a model that serves, the smallest size searched, as a share of the best size for training
# alone.
_SMALLEST_SHARE = 1e-5
FLOPS_PER_SERVED = 2  # per parameter and token: the forward pass alone (arXiv:2401.00448, eq. 2)


@dataclass(frozen=True)
class Allocation:
    """Number of parameters and the number of tokens to train them on."""

    parameters: float  # number of parameters, as the law counts them
    tokens: float  # number of tokens seen, repeats included

    @property
    def flops(self) -> float:
        """Operations of training, counted as 6ND."""
        return count_flops_6nd(self.parameters, self.tokens)


def to_data_constrained(form: Form) -> DataConstrained:
    """Return `form` as a law that accounts for repeated tokens.

    A parametric law that was fitted without repeats gets the decay of Muennighoff et al.
    (arXiv:2305.16264), the only one published. Raises ConfigError for a form that cannot be
    extended.
    """
    if isinstance(form, DataConstrained):
        return form
    base = form.parametric if isinstance(form, OverTraining) else form
    if not isinstance(base, Parametric):
        raise ConfigError(
            f"a {form.kind} law cannot tell repeated tokens from new ones; leave out "
            "`tokens_available`, or use a Parametric or DataConstrained law"
        )
    published = LAWS["muennighoff"].form
    assert isinstance(published, DataConstrained)
    return DataConstrained(base=base, r_d=published.r_d, r_n=published.r_n)


def make_loss_quantity(
    parameters: float, tokens: float, unique_tokens: float | None = None
) -> Callable[[Form], float]:
    """Return a function that computes the loss of a run by one form of a law.

    `unique_tokens` is the number of unique tokens; None means that no token repeats. The loss is
    NaN by a form that knows no repeats.
    """

    def loss(form: Form) -> float:
        if unique_tokens is None:
            return float(form.compute_loss(parameters, tokens))
        if isinstance(form, Kaplan):
            return math.nan
        repeating = to_data_constrained(form)
        return float(repeating.compute_loss(parameters, tokens, unique_tokens))

    return loss


def allocate_for_flops(
    form: Splitter, flops: float, unique_tokens: float | None = None
) -> Allocation:
    """Return the allocation of least loss for a budget, counted as 6ND.

    `unique_tokens` is the number of unique tokens; None means that no token repeats.
    """
    found = find_optimum(form, flops, unique_tokens)
    return Allocation(float(found.parameters), float(found.tokens))


def allocate_for_parameters(form: Splitter, parameters: float) -> Allocation:
    """Return the allocation whose best size is `parameters`.

    Raises ConfigError if no budget has this best size.
    """
    return _find_budget(form, lambda found: float(found.parameters), parameters, "parameters")


def allocate_for_tokens(form: Splitter, tokens: float) -> Allocation:
    """Return the allocation whose best number of tokens is `tokens`.

    Raises ConfigError if no budget has this best number.
    """
    return _find_budget(form, lambda found: float(found.tokens), tokens, "tokens")


def allocate_for_serving(
    form: Form, trained: Allocation, served: float, unique_tokens: float | None = None
) -> Allocation:
    """Return the allocation with the loss of `trained` that is cheapest to train and serve.

    It has the least 6ND + 2N x served (Sardana et al. 2024, arXiv:2401.00448, equation 3), where
    `served` is the number of tokens that the model will read and write. If nothing is served, the
    result is `trained` itself, which may come from a closed form.
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

    # Below some size no number of tokens reaches the loss and the cost is infinite, so a grid is
    # searched first.
    top = math.log(trained.parameters)
    grid = np.linspace(top + math.log(_SMALLEST_SHARE), top, 400)
    best = int(np.argmin([cost(log_parameters) for log_parameters in grid]))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    from scipy.optimize import minimize_scalar  # slow to import, so only when needed

    found = minimize_scalar(cost, bounds=around, method="bounded", options={"xatol": 1e-9})
    parameters = math.exp(found.x)
    return Allocation(parameters, find_tokens_reaching(form, loss, parameters, unique_tokens))


def compute_allocation_loss(
    form: Form, allocation: Allocation, unique_tokens: float | None = None
) -> float:
    """Return the loss of an allocation, in nats per token."""
    return float(form.compute_loss(allocation.parameters, allocation.tokens, unique_tokens))


def find_tokens_reaching(
    form: Form, loss: float, parameters: float, unique_tokens: float | None = None
) -> float:
    """Return the tokens with which a model of `parameters` reaches `loss`, or inf if none do."""

    def compute_gap(log_tokens: float) -> float:
        return float(form.compute_loss(parameters, math.exp(log_tokens), unique_tokens)) - loss

    low = math.log(1.0)
    high = math.log(1e30)
    if compute_gap(high) > 0:
        return math.inf
    from scipy.optimize import brentq

    return math.exp(brentq(compute_gap, low, high, xtol=1e-13, rtol=1e-14))


def find_optimum(form: Splitter, flops: float, unique_tokens: float | None = None) -> Optimum:
    """Return the best split. Where tokens must repeat, only a form says what repeats are worth."""
    if unique_tokens is None:
        return form.compute_optimum(flops)
    if isinstance(form, Steered):
        free = form.compute_optimum(flops)
        if float(free.tokens) <= unique_tokens:
            return free
        form = form.form
    return to_data_constrained(form).compute_optimum(flops, unique_tokens)


def _find_budget(
    form: Splitter, quantity: Callable[[Optimum], float], wanted: float, unit: str
) -> Allocation:
    def compute_gap(log_flops: float) -> float:
        return math.log(quantity(form.compute_optimum(math.exp(log_flops))) / wanted)

    low, high = _LOG_FLOPS
    if not compute_gap(low) < 0 < compute_gap(high):
        exponent = (compute_gap(high) - compute_gap(low)) / (high - low)
        raise ConfigError(
            f"no budget makes {wanted:.3g} {unit} the best choice under this law, in which "
            f"{unit} grow as compute to the power {exponent:.3g}"
        )
    from scipy.optimize import brentq

    found = form.compute_optimum(math.exp(brentq(compute_gap, low, high, xtol=1e-13, rtol=1e-14)))
    return Allocation(float(found.parameters), float(found.tokens))
