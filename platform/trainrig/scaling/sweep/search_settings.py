"""A search for the rate and the batch at one N and D, before a law's points are trained.

What is searched are factors of the rule's rate and batch: the best pair goes with the rule to every
other size. Here trials may be stopped early: all have the same N and D, nothing is fitted to their
losses, and the worst that a wrong stop does is to choose a pair that is a little worse.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainrig import storage
from trainrig.config import Settings

Factors = Annotated[
    tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], Field(min_length=1)
]
FOUND = "search.json"


class Grid(Settings):
    """Each rate with each batch."""

    kind: Literal["Grid"] = "Grid"


class Optuna(Settings):
    """Drawn by Optuna's tree of Parzen estimators (Akiba et al. 2019, arXiv:1907.10902).

    Between the least and the greatest of the factors, on a logarithmic scale. Needs the `optuna`
    extra. Each draw learns from those that are done: with several at once, the order in which
    they end changes what is drawn.
    """

    kind: Literal["Optuna"] = "Optuna"
    draws: int = Field(default=12, ge=2)  # points to try
    seed: int = Field(default=0, ge=0)  # random seed


class ASHA(Settings):
    """Stops what is worse than most at the same step (Li et al. 2020, arXiv:1810.05934)."""

    kind: Literal["ASHA"] = "ASHA"
    first: float = Field(default=0.25, gt=0, lt=1)  # share of the steps that every trial is given
    keep: int = Field(default=2, ge=2)  # one trial out of this many goes on at each rung


class RateSearch(Settings):
    """Where to search, among what, and how."""

    # Size of the model to search with, in parameters (N): a small one, as it is trained often.
    parameters: float = Field(gt=0)
    tokens: float = Field(gt=0)  # tokens (D) to train it on
    rate_factors: Factors = (0.5, 1.0, 2.0, 4.0)  # factors for the rule's learning rate to try
    batch_factors: Factors = (1.0,)  # factors for the rule's batch size to try
    # How to choose what to try.
    searcher: Annotated[Grid | Optuna, Field(discriminator="kind")] = Grid()
    # How to stop trials that do badly; None: each is trained to its end.
    scheduler: ASHA | None = None

    @model_validator(mode="after")
    def _something_to_search(self) -> "RateSearch":
        if len(set(self.rate_factors)) * len(set(self.batch_factors)) < 2:
            raise ValueError("one rate and one batch leave nothing to search; give several factors")
        return self


@dataclass(frozen=True)
class RateBatchPair:
    """A factor of the rule's rate, and one of its batch."""

    rate: float
    batch: float

    @property
    def name(self) -> str:
        """As folders are named; `find_pair` reads it."""
        return f"rate-{self.rate:.6g}-batch-{self.batch:.6g}"


def find_pair(name: str) -> RateBatchPair:
    """The pair of this name."""
    _, rate, batch = re.split(r"(?:^|-)(?:rate|batch)-", name)
    return RateBatchPair(float(rate), float(batch))


def name_drawn_pair(search: RateSearch, drawn: Mapping[str, float]) -> RateBatchPair:
    """The pair of factors that were drawn, to as many digits as its name has."""
    rate = drawn.get("rate", search.rate_factors[0])
    return find_pair(RateBatchPair(rate, drawn.get("batch", search.batch_factors[0])).name)


def list_pairs(search: RateSearch) -> tuple[RateBatchPair, ...]:
    """All that a grid tries."""
    rates, batches = sorted(set(search.rate_factors)), sorted(set(search.batch_factors))
    # As their names have them.
    return tuple(find_pair(RateBatchPair(rate, batch).name) for batch in batches for rate in rates)


def list_rungs(scheduler: ASHA | None, steps: int) -> tuple[int, ...]:
    """Steps at which a trial of `steps` is compared with others: multiples of the first of them,
    and its end."""
    found = [steps]
    if scheduler:
        at = math.ceil(scheduler.first * steps)
        while at < steps:
            found.append(at)
            at *= scheduler.keep
    return tuple(sorted(found))


@dataclass(frozen=True)
class Tried:
    """What came of one pair."""

    pair: RateBatchPair
    loss: float  # held out, nats per token; NaN: it diverged
    steps: int  # done
    whole: bool  # trained to its end: only such are compared in the end


def find_best_pair(tried: Sequence[Tried]) -> RateBatchPair | None:
    """The pair of the least loss at the end; None if none came there."""
    ended = [each for each in tried if each.whole and math.isfinite(each.loss)]
    return min(ended, key=lambda each: (each.loss, each.pair.name)).pair if ended else None


def write_found(
    folder: str, search: RateSearch, found: RateBatchPair, tried: Sequence[Tried]
) -> None:
    """Put on record below `folder` what the search found, and what it was chosen from."""
    entries: dict[str, Any] = {
        "parameters": search.parameters,
        "tokens": search.tokens,
        "rate_factor": found.rate,
        "batch_factor": found.batch,
        "at_an_edge": _find_edges(search, found),
        "tried": [
            {
                "rate_factor": each.pair.rate,
                "batch_factor": each.pair.batch,
                "loss": each.loss if math.isfinite(each.loss) else None,
                "steps": each.steps,
                "whole": each.whole,
            }
            for each in sorted(tried, key=lambda each: each.pair.name)
        ],
    }
    storage.write(storage.join(folder, FOUND), json.dumps(entries, indent=1).encode())


def read_found(folder: str) -> RateBatchPair | None:
    """What an earlier search below `folder` found; None if none ended."""
    path = storage.join(folder, FOUND)
    if not storage.exists(path):
        return None
    entries: dict[str, Any] = json.loads(storage.read(path))
    return RateBatchPair(entries["rate_factor"], entries["batch_factor"])


def _find_edges(search: RateSearch, found: RateBatchPair) -> list[str]:
    """Which of the two is the least or the greatest of several: a better one may lie beyond."""
    sides = {
        "rate": (search.rate_factors, found.rate),
        "batch": (search.batch_factors, found.batch),
    }
    return [
        name
        for name, (factors, value) in sides.items()
        if len(set(factors)) > 1 and value in (min(factors), max(factors))
    ]
