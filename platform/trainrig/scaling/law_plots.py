"""Plots that the pages of fits, plans, mixtures and the quickstart share.

Quantities of a law over a range of compute have intervals from its bootstrap draws.

Shapes: K draws, G computes, N sizes, D tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.report import plots
from trainrig.report.plots import Line, Numbers
from trainrig.scaling.laws.law import Interval, Law
from trainrig.scaling.laws.law_forms import Array, Form, Optimum

COMPUTE = plots.Axis("compute (FLOPs, 6ND)", "power", log=True)
LOSS = plots.Axis("loss (nats per token)", log=True)
LINES = 9  # number of contour lines
Points = tuple[Numbers, Numbers]


def draw_agreement(
    predicted: Numbers,
    actual: Numbers,
    held_out: Points | None = None,
    names: tuple[str, str] = ("fitted", "held out"),
) -> plots.Plot:
    """Plot predicted over measured loss, with the diagonal; held-out runs are diamonds.

    `held_out` has predicted and measured losses.
    """
    values = np.concatenate([predicted, actual, *(held_out or ())])
    ends = [float(values.min()), float(values.max())]
    marks = [
        Line(ends, ends, colour="muted", style="--", width=1),
        Line(actual, predicted, names[0] if held_out else "", style="o", size=4, opacity=0.6),
    ]
    if held_out:
        marks.append(Line(*held_out[::-1], names[1], "c2", "D", size=6, hollow=True))
    x, y = (plots.Axis(f"{what} loss (nats per token)") for what in ("measured", "predicted"))
    return plots.Plot(marks, x, y, height=330)


def draw_contours(
    surface: tuple[Numbers, Numbers, Numbers], frontier: Points, *marks: plots.Mark
) -> plots.Plot:
    """Plot lines of equal loss over parameters and tokens, and the optimum by compute.

    `surface` has parameters [N], tokens [D] and losses [D, N]; `frontier` parameters and tokens.
    """
    sizes, tokens, losses = surface
    low = float(losses.min())
    high = float(losses.max())
    least = low - 0.05 * (high - low)
    levels = least + np.geomspace(low - least, high - least, LINES + 2)[1:-1]
    best = Line(*frontier, "best for its compute", "c2", width=2.4)
    x = plots.Axis("parameters", log=True, low=sizes[0], high=sizes[-1])
    y = plots.Axis("tokens", log=True, low=tokens[0], high=tokens[-1])
    return plots.Plot(
        [plots.Contours(sizes, tokens, losses, levels), *marks[:1], best, *marks[1:]], x, y, 340
    )


def mark_chosen(x: float, y: float) -> Line:
    """Return the diamond of a plan."""
    return Line([x], [y], "this plan", "ink", "D", size=8, hollow=True, on_top=True)


def take_first_rows(rows: Sequence[plots.Row], most: int = 60) -> tuple[str, Sequence[plots.Row]]:
    """Return the first `most` of `rows`, and the words for that in a caption."""
    words = f", the first {most} of {len(rows):,}" if len(rows) > most else ""
    return words, rows[:most]


def cut_rows(rows: Sequence[plots.Row], most: int = 60) -> tuple[str, Sequence[plots.Row]]:
    """Return up to `most` of `rows`, evenly spaced, and the words for that in a caption."""
    if len(rows) <= most:
        return "", rows
    return f", {most} of {len(rows):,}", [rows[i] for i in plots.choose_evenly(len(rows), most)]


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
        line = Line(self.x, self.value, name, width=2.2)
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
