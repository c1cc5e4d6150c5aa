"""Predicted loss of a run, by a scaling law: the `plan.json` in its folder.

Training does not know scaling laws: it only reads the numbers that `trainrig plan` wrote, as far as
the report shows them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.errors import DataError
from trainrig.train.run.run_folder import PLAN

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """Predicted loss by number of tokens; `low` and `high` are NaN if there is no interval."""

    law: str
    tokens: Numbers  # increasing
    loss: Numbers  # nats per token
    low: Numbers
    high: Numbers

    def interpolate(self, tokens: float) -> tuple[float, float, float]:
        """Return loss, low and high for `tokens`, interpolated over the logarithm of tokens."""
        x = np.log(tokens)
        grid = np.log(self.tokens)
        loss, low, high = (float(np.interp(x, grid, y)) for y in (self.loss, self.low, self.high))
        return loss, low, high


def read_prediction(folder: str) -> Prediction | None:
    """Read the prediction of the run in `folder`; None if it has no plan.

    Raises DataError if the plan is invalid.
    """
    path = storage.join(folder, PLAN)
    return parse_prediction(storage.read(path), path) if storage.exists(path) else None


def parse_prediction(data: bytes, path: str) -> Prediction:
    """Parse a plan's bytes; errors name its `path`. Raise DataError if the plan is invalid."""
    try:
        plan: Mapping[str, Any] = json.loads(data)
        points = plan["curve"]
        columns = {
            name: np.array(
                [np.nan if point[name] is None else point[name] for point in points],
                dtype=np.float64,
            )
            for name in ("tokens", "loss", "low", "high")
        }
        if not len(points):
            raise ValueError("its curve has no points")
        return Prediction(law=str(plan["law"]), **columns)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a plan that `trainrig plan` wrote: {error!r}") from None
