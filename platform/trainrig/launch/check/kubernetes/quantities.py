"""Parser of Kubernetes quantities (`500m`, `16Gi`)."""

import re
from typing import Any

_FORM = re.compile(r"^([+-]?[0-9.]+)([numkMGTPE]|[KMGTPE]i)?$")
_TIMES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_TIMES |= {"E": 1e18} | {
    f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGTPE", 1)
}


def parse_quantity(quantity: Any) -> float | None:
    """Return `16Gi` in bytes, `500m` in cores; None for an invalid quantity."""
    if isinstance(quantity, int | float) and not isinstance(quantity, bool):
        return float(quantity)
    form = _FORM.match(quantity) if isinstance(quantity, str) else None
    if form is None:
        return None
    try:
        return float(form.group(1)) * _TIMES.get(form.group(2) or "", 1.0)
    except ValueError:  # such as "1.2.3"
        return None
