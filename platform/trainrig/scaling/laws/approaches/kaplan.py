"""Power laws of one thing at a time (Kaplan et al. 2020, arXiv:2001.08361, section 3).

L(N) = (N_c/N)^alpha_N where neither data nor compute bind, and likewise L(D) and L(C). A table of
runs shows each along its frontier: the runs better than every run with no more of that thing. There
is no offset: these laws reach zero, and bend where the data have an irreducible loss. Where the
runs at the frontier are themselves short of something else, the exponent is too small.
The law of both, L(N, D), is a form (`forms.Kaplan`) and is fitted as the others are.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.errors import DataError
from trainrig.scaling.laws.approaches.power import PowerLaw, fit_power
from trainrig.scaling.laws.runs_table import Floats, RunsTable

LEAST_POINTS = 3  # on a frontier: two are a line whatever they show


@dataclass(frozen=True)
class FrontierLaw:
    """L = (x_c / x)^alpha through the frontier over `x`."""

    of: str  # parameters, tokens or flops
    law: PowerLaw
    rows: tuple[int, ...]  # of the frontier

    @property
    def alpha(self) -> float:
        """The exponent, as Kaplan et al. write it: positive."""
        return -self.law.exponent

    @property
    def scale(self) -> float:
        """x_c: N_c in parameters, D_c in tokens, C_c in FLOPs."""
        return self.law.scale


@dataclass(frozen=True)
class KaplanLaws:
    """The three laws, and the exponent of N*(C) that they imply."""

    parameters: FrontierLaw
    tokens: FrontierLaw
    flops: FrontierLaw  # 6ND

    @property
    def parameters_exponent(self) -> float:
        """a of N* ~ C^a where L(C) = L(N*): alpha_C / alpha_N (Kaplan et al., section 6.1)."""
        return self.flops.alpha / self.parameters.alpha


def fit_kaplan(runs: RunsTable) -> KaplanLaws:
    """L(N), L(D) and L(C) of `runs`. Raises DataError where a frontier is too short."""
    return KaplanLaws(
        parameters=fit_frontier(runs, "parameters"),
        tokens=fit_frontier(runs, "tokens"),
        flops=fit_frontier(runs, "flops"),
    )


def fit_frontier(runs: RunsTable, of: str) -> FrontierLaw:
    """The power law of loss in one column. Raises DataError for fewer than three points."""
    x = runs.flops_6nd if of == "flops" else getattr(runs, of)
    rows = find_frontier(x, runs.loss)
    if len(rows) < LEAST_POINTS:
        raise DataError(
            f"L({of}): {len(rows)} of {len(runs)} runs are better than all with no more {of}, and "
            f"a power law needs {LEAST_POINTS}: train {LEAST_POINTS - len(rows)} more, with more "
            f"{of} than {x.max():.3g}"
        )
    return FrontierLaw(of, fit_power(x[rows], runs.loss[rows]), tuple(int(row) for row in rows))


def find_frontier(x: Floats, loss: Floats) -> NDArray[np.int64]:
    """The rows whose loss is below that of every row with no more `x`, in the order of `x`."""
    order = np.lexsort((loss, x))  # of those with the same x, the best first
    before = np.r_[np.inf, np.minimum.accumulate(loss[order])[:-1]]
    return np.asarray(order[loss[order] < before])
