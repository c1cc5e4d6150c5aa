"""Computes ratios of counts, rounded to 1e-4 before any threshold is applied.

So a rule decides the same from the text, from stored columns, and on every machine.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

STEPS = 10_000


def compute_shares(parts: NDArray[Any], wholes: NDArray[Any]) -> NDArray[np.float64]:
    """Compute `round(part / whole, 4)` of integers exactly; 0 where the whole is 0."""
    parts = parts.astype(np.int64)
    wholes = wholes.astype(np.int64)
    safe = np.maximum(wholes, 1)
    steps, rest = np.divmod(parts * STEPS, safe)
    steps += 2 * rest > safe
    rounded = steps / STEPS
    # Ties are rounded by Python's `round`, which considers the exact value of the double.
    for half in np.flatnonzero((2 * rest == safe) & (wholes > 0)).tolist():
        rounded[half] = round(int(parts[half]) / int(wholes[half]), 4)
    rounded[wholes == 0] = 0.0
    return rounded
