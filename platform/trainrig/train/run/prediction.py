"""What a law of scaling said of a run before it was trained: the `plan.json` in its folder.

Training knows nothing of laws: it reads the numbers that `trainrig plan` left, and no more of them
than the report draws.
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
    """The loss of runs that end after so many tokens; `low` and `high` are NaN without interval."""

    law: str
    tokens: Numbers  # rising
    loss: Numbers  # nats per token
    low: Numbers
    high: Numbers

    def interpolate(self, tokens: float) -> tuple[float, float, float]:
        """Loss, low and high of a run that ends after `tokens`, between the points by log."""
        x, grid = np.log(tokens), np.log(self.tokens)
        loss, low, high = (float(np.interp(x, grid, y)) for y in (self.loss, self.low, self.high))
        return loss, low, high


def read_prediction(folder: str) -> Prediction | None:
    """That of the run in `folder`; None if nobody planned it. Raises DataError for a broken one."""
    path = storage.join(folder, PLAN)
    return parse_prediction(storage.read(path), path) if storage.exists(path) else None


def parse_prediction(data: bytes, path: str) -> Prediction:
    """The prediction in a plan's bytes, which come from `path`. Raises DataError if it is none."""
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
            raise ValueError("its curve has no point")
        return Prediction(law=str(plan["law"]), **columns)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: no plan as `trainrig plan` writes them: {error!r}") from None
