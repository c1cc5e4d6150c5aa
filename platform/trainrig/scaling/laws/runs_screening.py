"""Selection of the runs that a law is fitted to.

Every excluded row is listed with its reason in the law's file. A table that mixes units,
tokenizers, objectives or recipes is rejected as a whole, since no single row is at fault.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.scaling.laws.law import LeftOut
from trainrig.scaling.laws.law_formats import name_objective
from trainrig.scaling.laws.runs_table import NATS, RunsTable

Mask = NDArray[np.bool_]


class Exclusions(Settings):
    """Rules that exclude rows from the fit. Rows without a loss are always excluded."""

    # Number of runs with the highest losses to exclude. Besiroglu et al. (arXiv:2404.10102) exclude
    # 5, which were too short for their size.
    highest_losses: int = Field(0, ge=0)
    # Treatment of outliers: runs whose loss is higher, by the share `worse_than_a_smaller_run`,
    # than the loss of a run with no more parameters and no more tokens. In the published tables
    # (Hoffmann, Muennighoff, Gadre, Bhagia) no row is worse by .04.
    outliers: Literal["drop", "keep"] = "drop"
    worse_than_a_smaller_run: Annotated[float, Field(gt=0)] = 0.1
    # Runs with a loss above this, in nats per token, are excluded; random guessing has
    # ln(vocabulary).
    above: float = Field(float("inf"), gt=0)


@dataclass(frozen=True)
class Screened:
    """Runs after screening, and the excluded rows.

    `runs` has the rows to fit. `along` has whole training curves, including these rows, for the
    envelope.
    """

    runs: RunsTable
    along: RunsTable
    left_out: tuple[LeftOut, ...]


def screen(runs: RunsTable, exclusions: Exclusions | None = None) -> Screened:
    """Exclude the rows of `runs` that no law should be fitted to.

    Raises DataError if the table mixes units, tokenizers, objectives or recipes, or no row remains.
    """
    rules = exclusions or Exclusions()
    refuse_mixtures(runs)
    left_out: list[LeftOut] = []
    kept = np.ones(len(runs), dtype=bool)
    for reasons in (
        _find_invalid,
        _find_not_ended,
        _make_out_of_line_rule(rules),
        _make_highest_rule(rules),
    ):
        for row, reason in reasons(runs, kept):
            left_out.append(LeftOut(name=str(runs.name[row]), reason=reason))
            kept[row] = False
    ends = kept & (runs.state == "end")
    if not ends.any():
        why = f"; the first: {left_out[0].name}: {left_out[0].reason}" if left_out else ""
        raise DataError(f"none of the {len(runs)} runs can be fitted{why}")
    return Screened(runs.select(ends), runs.select(kept), tuple(left_out))


def refuse_mixtures(runs: RunsTable) -> None:
    """Raise DataError unless all losses are in nats per token and of one tokenizer and recipe.

    The objective must be the same, too.
    """
    for unit in dict.fromkeys(runs.unit):
        if unit != NATS:
            count = int((runs.unit == unit).sum())
            raise DataError(
                f"{count} of {len(runs)} runs give their loss in {unit}, first "
                f"'{runs.name[runs.unit == unit][0]}'; laws are fitted to {NATS}"
            )
    tokenizers = [str(name) for name in dict.fromkeys(runs.tokenizer) if name]
    if len(tokenizers) > 1:
        raise DataError(
            f"the runs come from {len(tokenizers)} tokenizers ({_format_names(tokenizers)}), and "
            "nats per token of different tokenizers are not comparable: fit the runs of one "
            "tokenizer"
        )
    objectives = [name_objective(str(name)) for name in dict.fromkeys(runs.objective)]
    if len(objectives) > 1:
        raise DataError(
            f"the runs were trained for {len(objectives)} objectives "
            f"({_format_names(objectives)}), whose losses are of different targets: fit one sweep, "
            "or give `fit` a separate table for each objective"
        )
    recipes = [str(name) for name in dict.fromkeys(runs.recipe)]
    if len(recipes) > 1:
        raise DataError(
            f"the runs come from {len(recipes)} recipes ({_format_names(recipes)}), and each "
            "has a separate law: choose one with --recipe, or several to compare them"
        )


Reasons = Iterator[tuple[int, str]]
Rule = Callable[[RunsTable, Mask], Reasons]


def _find_invalid(runs: RunsTable, kept: Mask) -> Reasons:
    for row in np.flatnonzero(kept):
        loss = runs.loss[row]
        sizes = (runs.parameters[row], runs.tokens[row])
        if not np.isfinite(loss):
            yield int(row), f"its loss is {loss}, not a finite number"
        elif loss <= 0:
            yield int(row), f"its loss is {loss:g}, but must be above 0"
        elif not (np.isfinite(sizes).all() and min(sizes) > 0):
            yield (
                int(row),
                f"its parameters ({sizes[0]:g}) and tokens ({sizes[1]:g}) must both be above 0",
            )


_STATES = {
    "unfinished": "it stopped before its end, so its learning rate had not decayed",
    "diverged": "it diverged",
    "failed": "its trial failed",
}


def _find_not_ended(runs: RunsTable, kept: Mask) -> Reasons:
    for row in np.flatnonzero(kept):
        if reason := _STATES.get(str(runs.state[row])):
            yield int(row), reason


def _make_out_of_line_rule(rules: Exclusions) -> Rule:
    def reasons(runs: RunsTable, kept: Mask) -> Reasons:
        for row in np.flatnonzero(kept & (runs.loss > rules.above)):
            yield int(row), f"its loss, {runs.loss[row]:.4g}, is above {rules.above:g}"
        if rules.outliers == "keep":
            return
        ends = kept & (runs.loss <= rules.above) & (runs.state == "end")
        rows = np.flatnonzero(ends)
        finished = runs.select(ends)
        # Repeated tokens may well make a run worse, so only the first pass counts.
        fresh = np.fmin(finished.tokens, finished.unique_tokens)
        within = (finished.parameters[None, :] <= finished.parameters[:, None]) & (
            finished.tokens[None, :] <= fresh[:, None]
        )
        # [row, run that is no larger and no longer]
        best = np.where(within, finished.loss[None, :], np.inf)
        for i, row in enumerate(rows):
            smaller = int(np.argmin(best[i]))
            worse = finished.loss[i] / best[i, smaller] - 1
            if worse > rules.worse_than_a_smaller_run:
                yield int(row), _describe_outlier(finished, i, smaller, worse)

    return reasons


def _describe_outlier(finished: RunsTable, row: int, smaller: int, worse: float) -> str:
    return (
        f"outlier (residual {worse:+.0%}): its loss is {finished.loss[row]:.4g}, above the loss "
        f"of '{finished.name[smaller]}', which has no more parameters and tokens; use --outliers "
        "keep to fit it"
    )


def _make_highest_rule(rules: Exclusions) -> Rule:
    def reasons(runs: RunsTable, kept: Mask) -> Reasons:
        ends = np.flatnonzero(kept & (runs.state == "end"))
        highest = ends[np.argsort(-runs.loss[ends], kind="stable")][: rules.highest_losses]
        for place, row in enumerate(highest, 1):
            yield (
                int(row),
                f"its loss, {runs.loss[row]:.4g}, is the {_format_ordinal(place)}highest",
            )

    return reasons


def _format_ordinal(place: int) -> str:
    """Return "" for 1, and otherwise "2nd ", "3rd ", "11th ", "21st " and so on."""
    if place == 1:
        return ""
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if place % 100 in (11, 12, 13) else endings.get(place % 10, "th")
    return f"{place}{ending} "


def _format_names(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
