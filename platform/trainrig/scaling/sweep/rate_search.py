"""Search for the learning rate and batch size at one N and D, before a law's points are trained.

The search tries factors for the rate and the batch of a rule. The best pair of factors is used with
the rule for every other size. Trials of a search may be stopped early: all have the same N and D
and no law is fitted to their losses, so a wrong stop only leads to a slightly worse pair.
"""

import importlib.util
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainrig import storage
from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.optional_packages import describe_install

Factors = Annotated[
    tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], Field(min_length=1)
]
SEARCH_RESULT = "search.json"


class Grid(Settings):
    """Search that tries every rate with every batch."""

    kind: Literal["Grid"] = "Grid"

    def check(self) -> None:
        """Do nothing: trying every pair needs no package."""


class Optuna(Settings):
    """Search that draws factors with Optuna's tree of Parzen estimators (arXiv:1907.10902).

    Factors lie between the least and the greatest of those given, on a logarithmic scale. Requires
    the `optuna` extra. Each draw learns from the finished trials, so the order in which concurrent
    trials end changes the draws.
    """

    kind: Literal["Optuna"] = "Optuna"
    draws: int = Field(default=12, ge=2)  # number of pairs to try
    seed: int = Field(default=0, ge=0)  # random seed of the draws

    def check(self) -> None:
        """Raise ConfigError if the package Optuna is not installed."""
        if importlib.util.find_spec("optuna") is None:
            raise ConfigError(
                "search.searcher: Optuna is not installed; "
                f'run `{describe_install("optuna")}`, or use searcher = {{ kind = "Grid" }}'
            )


class ASHA(Settings):
    """Scheduler that stops the worse trials at each rung (Li et al. 2020, arXiv:1810.05934)."""

    kind: Literal["ASHA"] = "ASHA"
    # share of the steps that every trial gets before the first comparison
    first: float = Field(default=0.25, gt=0, lt=1)
    keep: int = Field(default=2, ge=2)  # one trial out of this many continues at each rung


class RateSearch(Settings):
    """Settings of a search for the learning rate and the batch size."""

    # Size of the model to search with, in parameters (N). Choose a small model, because the search
    # trains it once for each pair.
    parameters: float = Field(gt=0)
    tokens: float = Field(gt=0)  # tokens (D) to train the model on
    rate_factors: Factors = (0.5, 1.0, 2.0, 4.0)  # factors to try for the rule's learning rate
    batch_factors: Factors = (1.0,)  # factors to try for the rule's batch size
    # How to choose the pairs of factors to try.
    searcher: Annotated[Grid | Optuna, Field(discriminator="kind")] = Grid()
    # How to stop trials that do badly; None: each trial is trained to its end.
    scheduler: ASHA | None = None

    @model_validator(mode="after")
    def _something_to_search(self) -> "RateSearch":
        if len(set(self.rate_factors)) * len(set(self.batch_factors)) < 2:
            raise ValueError(
                "one rate and one batch leave nothing to search; give several factors of either"
            )
        return self


@dataclass(frozen=True)
class RateBatchPair:
    """Factor for the rule's learning rate, and factor for its batch size."""

    rate: float
    batch: float

    @property
    def name(self) -> str:
        """The name of the pair's folder, which `parse_pair` reads."""
        return f"rate-{self.rate:.6g}-batch-{self.batch:.6g}"


def parse_pair(name: str) -> RateBatchPair:
    """Return the pair of factors that has this folder name."""
    _, rate, batch = re.split(r"(?:^|-)(?:rate|batch)-", name)
    return RateBatchPair(float(rate), float(batch))


def name_drawn_pair(search: RateSearch, drawn: Mapping[str, float]) -> RateBatchPair:
    """Return the pair of drawn factors, rounded as in its name."""
    rate = drawn.get("rate", search.rate_factors[0])
    return parse_pair(RateBatchPair(rate, drawn.get("batch", search.batch_factors[0])).name)


def list_pairs(search: RateSearch) -> tuple[RateBatchPair, ...]:
    """Return all pairs that a grid tries, by batch and rate."""
    rates = sorted(set(search.rate_factors))
    batches = sorted(set(search.batch_factors))
    # The pairs are rounded as in their names.
    return tuple(parse_pair(RateBatchPair(rate, batch).name) for batch in batches for rate in rates)


def list_rungs(scheduler: ASHA | None, steps: int) -> tuple[int, ...]:
    """Return the steps at which a trial is compared with others, in ascending order.

    The first is a share of `steps`, and each further one is `keep` times the one before. The last
    is the end of the trial. Without a scheduler there is only the end.
    """
    rungs = [steps]
    if scheduler:
        rung = math.ceil(scheduler.first * steps)
        while rung < steps:
            rungs.append(rung)
            rung *= scheduler.keep
    return tuple(sorted(rungs))


@dataclass(frozen=True)
class TriedPair:
    """Result of the trial of one pair."""

    pair: RateBatchPair
    loss: float  # held-out loss in nats per token; NaN: the trial diverged
    steps: int  # number of steps done
    whole: bool  # true if trained to the end; only such trials are compared in the end


def find_best_pair(tried: Sequence[TriedPair]) -> RateBatchPair | None:
    """Return the pair of least loss at the end, or None if no trial got there."""
    ended = [trial for trial in tried if trial.whole and math.isfinite(trial.loss)]
    return min(ended, key=lambda trial: (trial.loss, trial.pair.name)).pair if ended else None


def write_search_result(
    folder: str, search: RateSearch, found: RateBatchPair, tried: Sequence[TriedPair]
) -> None:
    """Write what the search found, and the results of all pairs, to `search.json` in `folder`."""
    entries: dict[str, Any] = {
        "parameters": search.parameters,
        "tokens": search.tokens,
        "rate_factor": found.rate,
        "batch_factor": found.batch,
        "at_an_edge": _find_edges(search, found),
        "tried": [
            {
                "rate_factor": trial.pair.rate,
                "batch_factor": trial.pair.batch,
                "loss": trial.loss if math.isfinite(trial.loss) else None,
                "steps": trial.steps,
                "whole": trial.whole,
            }
            for trial in sorted(tried, key=lambda trial: trial.pair.name)
        ],
    }
    storage.write(storage.join(folder, SEARCH_RESULT), json.dumps(entries, indent=1).encode())


def read_search_result(folder: str) -> RateBatchPair | None:
    """Return the result of an earlier search in `folder`, or None if none has finished."""
    path = storage.join(folder, SEARCH_RESULT)
    if not storage.exists(path):
        return None
    entries: dict[str, Any] = json.loads(storage.read(path))
    return RateBatchPair(entries["rate_factor"], entries["batch_factor"])


def _find_edges(search: RateSearch, found: RateBatchPair) -> list[str]:
    """Return which of rate and batch have the least or greatest factor of several as the best.

    A better factor may lie beyond such an edge.
    """
    sides = {
        "rate": (search.rate_factors, found.rate),
        "batch": (search.batch_factors, found.batch),
    }
    return [
        name
        for name, (factors, value) in sides.items()
        if len(set(factors)) > 1 and value in (min(factors), max(factors))
    ]
