"""N*(C) and D*(C) by every approach that the runs allow, with bootstrap intervals.

Besides the approaches of Hoffmann et al., power laws of a single variable are fitted (Kaplan et al.
2020, arXiv:2001.08361, section 3): L(N) = (N_c/N)^alpha_N where neither data nor compute is the
bottleneck; L(D) and L(C) are alike. Each is fitted along a frontier: the runs that are better than
every run with no more of that variable. The laws have no offset, so they tend to zero and fit worse
where the loss has an irreducible part. If the runs on the frontier lack another resource, the
exponent is too small.
"""

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


@dataclass(frozen=True)
class FrontierLaw:
    """Power law L = (x_c / x)^alpha along the frontier over `x`."""

    variable: str  # parameters, tokens or flops
    law: hoffmann.PowerLaw
    rows: tuple[int, ...]  # row indices of the frontier

    @property
    def alpha(self) -> float:
        """The exponent with the sign of Kaplan et al.: positive."""
        return -self.law.exponent

    @property
    def scale(self) -> float:
        """The constant x_c: N_c in parameters, D_c in tokens, or C_c in FLOPs."""
        return self.law.scale


@dataclass(frozen=True)
class KaplanLaws:
    """Kaplan's three single-variable laws, and the exponent of N*(C) that they imply."""

    parameters: FrontierLaw
    tokens: FrontierLaw
    flops: FrontierLaw  # 6ND

    @property
    def parameters_exponent(self) -> float:
        """The exponent a of N* ~ C^a: alpha_C / alpha_N (Kaplan et al., section 6.1)."""
        return self.flops.alpha / self.parameters.alpha


def fit_kaplan(runs: RunsTable) -> KaplanLaws:
    """Fit L(N), L(D) and L(C) to `runs`. Raises DataError if a frontier is too short."""
    return KaplanLaws(
        parameters=fit_frontier(runs, "parameters"),
        tokens=fit_frontier(runs, "tokens"),
        flops=fit_frontier(runs, "flops"),
    )


def fit_frontier(runs: RunsTable, variable: str) -> FrontierLaw:
    """Fit the power law of the loss in one column. Raises DataError for fewer than three points."""
    x = runs.flops_6nd if variable == "flops" else getattr(runs, variable)
    rows = find_frontier(x, runs.loss)
    if len(rows) < LEAST_POINTS:
        raise DataError(
            f"L({variable}): {len(rows)} of {len(runs)} runs are better than all with no more "
            f"{variable}, but a power law needs {LEAST_POINTS}: train "
            f"{LEAST_POINTS - len(rows)} more, with more {variable} than {x.max():.3g}"
        )
    return FrontierLaw(
        variable, hoffmann.fit_power(x[rows], runs.loss[rows]), tuple(int(row) for row in rows)
    )


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
            draws=self._list_draws() if of_parameters.bootstrap else (),
            note=note,
        )

    def _list_draws(self) -> tuple[tuple[float, float], ...]:
        return tuple((float(log_k), float(a)) for log_k, a in self.draws.good)


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


def fit_frontier_laws(
    runs: RunsTable, rules: Bootstrap
) -> tuple[KaplanLaws, dict[str, IntervalEstimate]]:
    """Fit Kaplan's L(N), L(D) and L(C), and estimate alpha and x_c of each with intervals."""

    def numbers(drawn: RunsTable) -> list[float]:
        laws = fit_kaplan(drawn)
        fitted = (laws.parameters, laws.tokens, laws.flops)
        return [number for law in fitted for number in (law.alpha, law.scale)]

    draws = bootstrap(_make_refit_of_present(numbers, runs, 6), runs, _limit_draws(rules))
    names = [f"L({x}).{y}" for x in ("N", "D", "C") for y in ("alpha", "scale")]
    found = zip(names, numbers(runs), draws.good.T, strict=True)
    return fit_kaplan(runs), {name: draws.estimate(value, drawn) for name, value, drawn in found}


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


def _make_refit_of_present(
    fit: Callable[[RunsTable], Sequence[float]], runs: RunsTable, quantities: int
) -> Callable[[Counts], Array]:
    """Return a function that fits each draw separately to the rows that it took at least once.

    Frontiers ignore how often a row is drawn.
    """

    def refit(counts: Counts) -> Array:
        values = np.full((len(counts), quantities), np.nan)
        for row, count in zip(values, counts, strict=True):
            try:
                row[:] = fit(runs.select(count > 0))
            except DataError:
                continue
        return values

    return refit
