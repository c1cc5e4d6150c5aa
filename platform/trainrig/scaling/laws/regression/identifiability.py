"""Checks that the runs can identify the constants of a form before it is fitted.

A fit always returns numbers. But runs on one line of the (log N, log D) plane (the same D/N, the
same budget or the same N) cannot separate the two terms of a law.
"""

import numpy as np

from trainrig.errors import DataError
from trainrig.scaling.laws.forms import Array
from trainrig.scaling.laws.runs_table import RunsTable

SPARE = 2  # runs needed beyond the number of constants, to judge the fit by
LEVELS = 3  # different values needed of N, and of D: a power law above a floor has three constants
SAME = 1.05  # values within this factor count as equal
LEAST_FACTOR = 1.3  # factor by which the runs must deviate from their common line


def check_numbers(runs: RunsTable) -> None:
    """Raise DataError naming the first run whose size, tokens or loss is not positive."""
    for column in ("parameters", "tokens", "loss"):
        values = getattr(runs, column)
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if len(bad):
            more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            raise DataError(
                f"{runs.name[bad[0]]}: {column} is {values[bad[0]]:g}{more}; a law needs positive"
                " numbers: remove such runs from the table"
            )


def check_spread(runs: RunsTable, form: str, constants: int) -> None:
    """Raise DataError if `runs` cannot identify the form's `constants`, and suggest runs to add."""
    check_numbers(runs)
    sizes = find_levels(runs.parameters)
    lengths = find_levels(runs.tokens)
    needed = constants + SPARE
    if len(runs) < needed or len(sizes) < LEVELS or len(lengths) < LEVELS:
        missing = max(needed - len(runs), LEVELS - len(sizes), LEVELS - len(lengths))
        raise DataError(
            f"{len(runs)} runs with {_format_number_of(sizes, 'size')} and"
            f" {_format_number_of(lengths, 'token count')}: {form} has {constants} constants and"
            f" needs {needed} runs, {LEVELS} sizes and {LEVELS} token counts; add at least"
            f" {missing}, {_suggest_where(runs, sizes, lengths)}"
        )
    slope, factor = _fit_line(np.log(runs.parameters), np.log(runs.tokens))
    if factor < LEAST_FACTOR:
        raise DataError(
            f"all {len(runs)} runs lie {_describe_ray(runs, slope)} (within a factor {factor:.3g}),"
            f" where {form} cannot separate the effects of parameters and tokens; add others,"
            " such as the same sizes with a quarter and four times the tokens"
        )


def find_levels(values: Array) -> Array:
    """Return the different values in ascending order, merging those within a factor SAME."""
    ordered = np.sort(values)
    new = np.r_[True, ordered[1:] > ordered[:-1] * SAME] if len(ordered) else np.array([], bool)
    return np.asarray(ordered[new])


def _fit_line(log_n: Array, log_d: Array) -> tuple[float, float]:
    """Return the slope of the line through the runs, and their greatest deviation as a factor."""
    centred = np.stack([log_n - log_n.mean(), log_d - log_d.mean()])
    _, vectors = np.linalg.eigh(centred @ centred.T)
    across = vectors[:, 0]
    along = vectors[:, 1]
    with np.errstate(divide="ignore"):
        return float(along[1] / along[0]), float(np.exp(np.ptp(across @ centred)))


def _describe_ray(runs: RunsTable, slope: float) -> str:
    if abs(slope - 1) < 0.1:
        return f"at one ratio D/N = {np.median(runs.tokens / runs.parameters):.3g}"
    if abs(slope + 1) < 0.1:
        return f"at one budget of {np.median(6 * runs.parameters * runs.tokens):.3g} FLOPs"
    return f"on one line D ~ N^{slope:.2f}"


def _suggest_where(runs: RunsTable, sizes: Array, lengths: Array) -> str:
    if not len(runs):
        return "over a tenfold range of both"
    places = []
    if len(sizes) < LEVELS:
        low = runs.parameters.min() / 4
        high = runs.parameters.max() * 4
        places.append(f"of N from {low:.2g} to {high:.2g}")
    if len(lengths) < LEVELS:
        low = runs.tokens.min() / 4
        high = runs.tokens.max() * 4
        places.append(f"with D from {low:.2g} to {high:.2g}")
    return " and ".join(places) if places else "at other pairs of N and D"


def _format_number_of(values: Array, noun: str) -> str:
    return f"{len(values)} {noun}{'' if len(values) == 1 else 's'}"
