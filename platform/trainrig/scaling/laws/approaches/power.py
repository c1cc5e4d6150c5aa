"""Power laws of one variable, fitted as straight lines in logarithms."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from trainrig.errors import DataError
from trainrig.scaling.laws.runs_table import Floats


@dataclass(frozen=True)
class PowerLaw:
    """Power law y = coefficient * x^exponent."""

    coefficient: float
    exponent: float

    def __call__(self, x: ArrayLike) -> Floats:
        """Return y at `x`."""
        values = np.asarray(x, dtype=np.float64)
        # In logarithms, because both the coefficient and x^exponent may overflow with x in FLOPs.
        return np.asarray(np.exp(np.log(self.coefficient) + self.exponent * np.log(values)))

    @property
    def scale(self) -> float:
        """The x at which y is 1: x_c of Kaplan's (x_c/x)^alpha, where alpha = -exponent."""
        return float(np.exp(-np.log(self.coefficient) / self.exponent))


def fit_power(x: Floats, y: Floats) -> PowerLaw:
    """Fit log y over log x by least squares. Raises DataError if all x are equal."""
    log_x = np.log(x)
    log_y = np.log(y)
    centred = log_x - log_x.mean()
    spread = float(centred @ centred)
    if spread < 1e-12:
        raise DataError(f"a power law needs two different values, found {len(x)} of {x[0]:.3g}")
    exponent = float(centred @ log_y) / spread
    return PowerLaw(float(np.exp(log_y.mean() - exponent * log_x.mean())), exponent)
