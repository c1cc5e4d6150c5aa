"""Predictions of a law over a range of compute, with intervals from its bootstrap draws.

Shapes: K draws, G computes, N sizes, D tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trainrig.report import plots
from trainrig.scaling.laws.law import Interval, Law
from trainrig.scaling.laws.law_forms import Array, Form, Optimum

LEVEL = 0.95
COMPUTES = 60
GRID = 80  # number of sizes and of tokens on a surface
BEYOND = 100.0  # factor beyond the runs' largest compute up to which a law is drawn


@dataclass(frozen=True)
class Band:
    """A quantity over compute, with the ends of its interval if there is one."""

    x: Array
    value: Array
    low: Array | None = None
    high: Array | None = None

    def draw(self, name: str = "this law") -> list[plots.Mark]:
        """Return the line and its band."""
        line = plots.Line(self.x, self.value, name, width=2.2)
        if self.low is None or self.high is None:
            return [line]
        return [line, plots.Band(self.x, self.low, self.high)]


def compute_band(law: Law, flops: Array, quantity: Callable[[Optimum], Array]) -> Band:
    """Compute `quantity` of the optimum at each of `flops` [G], with an interval of level LEVEL."""
    value = quantity(law.form.compute_optimum(flops))
    if law.no_interval:
        return Band(flops, value)
    drawn = np.stack([quantity(form.compute_optimum(flops)) for form in law.draws])
    low, high = np.nanquantile(drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2), axis=0)
    return Band(flops, value, low, high)


def space_computes(law: Law) -> Array:
    """Return computes [G] from the runs' least to BEYOND times their greatest, evenly in log."""
    assert law.ranges is not None  # a fitted law has ranges
    span = law.ranges.flops
    return np.geomspace(span.least, span.greatest * BEYOND, COMPUTES)


def compute_surface(
    form: Form, parameters: tuple[float, float], tokens: tuple[float, float]
) -> tuple[Array, Array, Array]:
    """Compute the loss on a grid between the given ends of parameters and tokens.

    Returns parameters [N], tokens [D] and losses [D, N].
    """
    sizes = np.geomspace(*parameters, GRID)
    seen = np.geomspace(*tokens, GRID)
    return sizes, seen, form.compute_loss(sizes[None, :], seen[:, None])


def format_ends(interval: Interval | None) -> tuple[str, str]:
    """Format the low and the high end of an interval for two table cells."""
    low, high = str(interval).strip("[]").split(", ") if interval else ("–", "–")
    return low, high


def format_power(value: float, digits: int = 2) -> str:
    """Format a number in scientific notation, as `1.3e23`."""
    return f"{value:.{digits - 1}e}".replace("e+", "e").replace("e0", "e")


def format_formula(form: Form) -> str:
    """Format the formula of a law, with constants to four digits."""
    if form.kind == "Parametric":
        return (
            f"L = {form.E:.4g} + {form.A:.4g}/N^{form.alpha:.4g} + {form.B:.4g}/D^{form.beta:.4g}"
        )
    constants = ", ".join(f"{name} = {value:.4g}" for name, value in form.constants.items())
    return f"{form.kind}: {constants}"
