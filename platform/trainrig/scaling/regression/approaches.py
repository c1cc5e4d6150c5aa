"""N*(C) and D*(C) by every approach that the runs allow, with bootstrap intervals.

Besides the approaches of Hoffmann et al., power laws of a single variable are fitted (Kaplan et al.
2020, arXiv:2001.08361, section 3): L(N) = (N_c/N)^alpha_N where neither data nor compute is the
bottleneck; L(D) and L(C) are alike. Each is fitted along a frontier: the runs that are better than
every run with no more of that variable. The laws have no offset, so they tend to zero and fit worse
where the loss has an irreducible part. If the runs on the frontier lack another resource, the
exponent is too small.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.errors import DataError
from trainrig.scaling.laws.law import Approach, IntervalEstimate, LeftOut
from trainrig.scaling.laws.law_forms import Array
from trainrig.scaling.laws.runs_table import Floats, RunsTable
from trainrig.scaling.regression import hoffmann
from trainrig.scaling.regression.bootstrap import Bootstrap, Counts, Draws, bootstrap

LEAST_POINTS = 3  # fewest on a frontier, since a line fits any two


def fit_frontier(runs: RunsTable, variable: str) -> tuple[float, float]:
    """Fit the power law L = (x_c / x)^alpha of the loss in one column; return alpha and x_c.

    `variable` is parameters, tokens or flops (6ND). Raises DataError for fewer than three points.
    """
    x = runs.flops_6nd if variable == "flops" else getattr(runs, variable)
    rows = find_frontier(x, runs.loss)
    if len(rows) < LEAST_POINTS:
        raise DataError(
            f"L({variable}): {len(rows)} of {len(runs)} runs are better than all with no more "
            f"{variable}, but a power law needs {LEAST_POINTS}: train "
            f"{LEAST_POINTS - len(rows)} more, with more {variable} than {x.max():.3g}"
        )
    law = hoffmann.fit_power(x[rows], runs.loss[rows])
    return -law.exponent, law.scale


def find_frontier(x: Floats, loss: Floats) -> NDArray[np.int64]:
    """Return the rows with a loss below every row with no more `x`, in the order of `x`."""
    order = np.lexsort((loss, x))  # best first among equal x
    before = np.r_[np.inf, np.minimum.accumulate(loss[order])[:-1]]
    return np.asarray(order[loss[order] < before])


COSTLY = 200  # most draws where each is refitted separately, at about a millisecond each


@dataclass(frozen=True)
class PowerLine:
    """Power law N* = k C^a, with bootstrap draws [K, 2] of (ln k, a)."""

    law: hoffmann.PowerLaw
    draws: Draws
    minima: int  # number of minima in N that the line goes through

    def build_approach(self, name: str, note: str) -> Approach:
        """Build the record for the law's file. D* = C / 6N*, so its exponent is 1 - a.

        If too many draws have no fit, the exponents have no interval and the note says why.
        """
        a = self.draws.good[:, 1]
        exponent = self.law.exponent
        try:
            of_parameters = self.draws.estimate(exponent, a)
            of_tokens = self.draws.estimate(1 - exponent, 1 - a)
        except DataError as why:
            of_parameters = IntervalEstimate(value=exponent)
            of_tokens = IntervalEstimate(value=1 - exponent)
            note = f"no interval: {why}" + (f"; {note}" if note else "")
        return Approach(
            name=name,
            parameters_exponent=of_parameters,
            tokens_exponent=of_tokens,
            parameters_coefficient=self.law.coefficient,
            minima=self.minima,
            draws=tuple((float(log_k), float(a)) for log_k, a in self.draws.good)
            if of_parameters.bootstrap
            else (),
            note=note,
        )


def fit_isoflop_line(
    runs: RunsTable, settings: hoffmann.IsoFlop, rules: Bootstrap
) -> tuple[PowerLine, hoffmann.IsoFlopFit]:
    """Fit approach 2. Raises DataError if fewer than two budgets have a minimum inside."""
    fit = hoffmann.fit_isoflops(runs, settings)
    budget = np.zeros(len(runs), dtype=np.int64)
    for number, bowl in enumerate(fit.bowls, 1):
        budget[list(bowl.rows)] = number
    drawn = bootstrap(
        lambda counts: hoffmann.refit_isoflops(fit, runs, counts), runs, rules, strata=budget
    )
    return PowerLine(fit.parameters, drawn, len(fit.bowls)), fit


def fit_envelope_line(
    runs: RunsTable, settings: hoffmann.Envelope, rules: Bootstrap
) -> tuple[PowerLine, hoffmann.EnvelopeFit]:
    """Fit approach 1. Raises DataError if too few sizes are the best at some compute."""
    drawn = hoffmann.interpolate_curves(runs, settings)
    fit = hoffmann.fit_envelope_to_curves(drawn)
    of_each = bootstrap(
        lambda counts: hoffmann.refit_envelope(drawn, runs, counts), runs, _limit_draws(rules)
    )
    return PowerLine(fit.parameters, of_each, len(np.unique(fit.best))), fit


def fit_frontier_laws(runs: RunsTable, rules: Bootstrap) -> dict[str, IntervalEstimate]:
    """Fit Kaplan's L(N), L(D) and L(C), and estimate alpha and x_c of each with intervals.

    Each draw is fitted separately to the rows that it took at least once, because frontiers ignore
    how often a row is drawn. Raises DataError if a frontier is too short.
    """

    def numbers(drawn: RunsTable) -> list[float]:
        laws = (fit_frontier(drawn, variable) for variable in ("parameters", "tokens", "flops"))
        return [number for law in laws for number in law]

    def refit(counts: Counts) -> Array:
        values = np.full((len(counts), 6), np.nan)
        for row, count in zip(values, counts, strict=True):
            with contextlib.suppress(DataError):
                row[:] = numbers(runs.select(count > 0))
        return values

    draws = bootstrap(refit, runs, _limit_draws(rules))
    names = [f"L({x}).{y}" for x in ("N", "D", "C") for y in ("alpha", "scale")]
    found = zip(names, numbers(runs), draws.good.T, strict=True)
    return {name: draws.estimate(value, drawn) for name, value, drawn in found}


def fit_approaches(
    runs: RunsTable,
    along: RunsTable,
    isoflop: hoffmann.IsoFlop,
    envelope: hoffmann.Envelope,
    rules: Bootstrap,
) -> tuple[Approach, ...]:
    """Fit approaches 1 and 2, with a note where one does not apply.

    `along` has the points of whole training curves, which approach 1 uses.
    """

    def by_envelope() -> Approach:
        line, fit = fit_envelope_line(along, envelope, rules)
        undecayed = int((along.state == "along").sum())
        mixed = f"{undecayed} points precede the decay of the learning rate; " if undecayed else ""
        return line.build_approach("envelope", mixed + _list_refused(fit.refused))

    def by_isoflop() -> Approach:
        line, fit = fit_isoflop_line(runs, isoflop, rules)
        return line.build_approach("isoflop", _list_refused(fit.refused))

    return _try_approach("envelope", by_envelope), _try_approach("isoflop", by_isoflop)


def _try_approach(name: str, find: Callable[[], Approach]) -> Approach:
    try:
        return find()
    except DataError as why:
        return Approach(
            name=name, parameters_exponent=None, tokens_exponent=None, note=f"refused: {why}"
        )


def _list_refused(refused: Sequence[LeftOut]) -> str:
    return "; ".join(f"left out {one.name}: {one.reason}" for one in refused)


def _limit_draws(rules: Bootstrap) -> Bootstrap:
    return rules.model_copy(update={"draws": min(rules.draws, COSTLY)})
