"""What the processes of a sweep do, one trial after another. It knows no Ray.

Pickled whole: a process that has it needs nothing else but the folders that it names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trainrig.scaling.search import Search, drawn_pair, named_pair
from trainrig.scaling.searching import train_searched
from trainrig.scaling.sweep_run import Sweep
from trainrig.scaling.trial import Alone, train_trial
from trainrig.scaling.trials import Data, Trial, plan_search

Config = Mapping[str, Any]
Report = Callable[[Mapping[str, Any]], None]


class Work(Protocol):
    """One kind of trials."""

    @property
    def run(self) -> Sweep:
        """The sweep that they are of."""

    def trial(self, config: Config) -> Trial:
        """The trial that `config` names."""

    def do(self, trial: Trial, alone: Alone, report: Report) -> None:
        """Train it. `report` may end the process's part in it."""


@dataclass(frozen=True)
class TrainedTrials:
    """The points of a law. Nothing is reported on the way: nobody may stop them."""

    run: Sweep
    data: Data
    trials: Mapping[str, Trial]

    def trial(self, config: Config) -> Trial:
        """See Work."""
        return self.trials[config["name"]]

    def do(self, trial: Trial, alone: Alone, report: Report) -> None:
        """See Work."""
        train_trial(self.run, trial, self.data, alone)


@dataclass(frozen=True)
class SearchedPairs:
    """Pairs of rate and batch at one N and D."""

    run: Sweep
    data: Data
    search: Search

    def trial(self, config: Config) -> Trial:
        """See Work."""
        named = config.get("name")
        pair = named_pair(named) if named else drawn_pair(self.search, config)
        return plan_search(self.run, self.search, self.data, [pair])[0]

    def do(self, trial: Trial, alone: Alone, report: Report) -> None:
        """See Work."""
        train_searched(self.run, self.search, trial, self.data, alone, report)
