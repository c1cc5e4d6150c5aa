"""Power laws of a single variable (Kaplan et al. 2020, arXiv:2001.08361, section 3).

L(N) = (N_c/N)^alpha_N where neither data nor compute is the bottleneck; L(D) and L(C) are alike.
Each is fitted along a frontier: the runs that are better than every run with no more of that
variable. The laws have no offset, so they tend to zero and fit worse where the loss has an
irreducible part. If the runs on the frontier lack another resource, the exponent is too small. The
joint law L(N, D) is a form (`forms.Kaplan`) and is fitted like the others.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.errors import DataError
from trainrig.scaling.laws.approaches.power import PowerLaw, fit_power
from trainrig.scaling.laws.runs_table import Floats, RunsTable

LEAST_POINTS = 3  # fewest on a frontier, since a line fits any two


@dataclass(frozen=True)
class FrontierLaw:
    """Power law L = (x_c / x)^alpha along the frontier over `x`."""

    variable: str  # parameters, tokens or flops
    law: PowerLaw
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
        variable, fit_power(x[rows], runs.loss[rows]), tuple(int(row) for row in rows)
    )


def find_frontier(x: Floats, loss: Floats) -> NDArray[np.int64]:
    """Return the rows with a loss below every row with no more `x`, in the order of `x`."""
    order = np.lexsort((loss, x))  # best first among equal x
    before = np.r_[np.inf, np.minimum.accumulate(loss[order])[:-1]]
    return np.asarray(order[loss[order] < before])
