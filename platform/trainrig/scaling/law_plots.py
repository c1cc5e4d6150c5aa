"""Plots that the pages of fits, plans, mixtures and the quickstart share."""

from collections.abc import Sequence

import numpy as np

from trainrig.report import plots
from trainrig.report.plots import Line, Numbers

COMPUTE = plots.Axis("compute (FLOPs, 6ND)", "power", log=True)
LOSS = plots.Axis("loss (nats per token)", log=True)
LEVELS = 9  # number of contour lines
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
    levels = least + np.geomspace(low - least, high - least, LEVELS + 2)[1:-1]
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
