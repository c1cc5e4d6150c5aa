"""What the process of a trial does. It knows no Ray.

It is told by pickle, in full: beside that it needs nothing but the folders that are named there.
"""

import math
import os
import pickle
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from trainrig import storage
from trainrig.errors import InputError, Unfinished
from trainrig.processes.lease import follow_lease
from trainrig.processes.stop_file import FILE
from trainrig.scaling.sweep.run_file import Sweep
from trainrig.scaling.sweep.search_settings import RateSearch, find_pair, name_drawn_pair
from trainrig.scaling.sweep.search_trials import train_searched
from trainrig.scaling.sweep.trial import Alone, StopFile, only_rank, train_trial
from trainrig.scaling.sweep.trial_agent import Said, TrialEnded
from trainrig.scaling.sweep.trial_failures import TrialFailure
from trainrig.scaling.sweep.trials import SweepTokens, Trial, plan_search
from trainrig.train.elastic.failure_cause import format_last_line, is_out_of_memory

Config = Mapping[str, Any]
Report = Callable[[Mapping[str, Any]], None]


class TrialTask(Protocol):
    """One kind of trials."""

    @property
    def run(self) -> Sweep:
        """The sweep that they are of."""

    def find_trial(self, config: Config) -> Trial:
        """The trial that `config` names."""

    def do(self, trial: Trial, alone: Alone, report: Report) -> None:
        """Train it. `report` may end the process's part in it."""


@dataclass(frozen=True)
class TrainedTrials:
    """The points of a law. Nothing is reported on the way: nobody may stop them."""

    run: Sweep
    data: SweepTokens
    trials: Mapping[str, Trial]

    def find_trial(self, config: Config) -> Trial:
        """See Work."""
        return self.trials[config["name"]]

    def do(self, trial: Trial, alone: Alone, report: Report) -> None:
        """See Work."""
        train_trial(self.run, trial, self.data, alone)


@dataclass(frozen=True)
class SearchedPairs:
    """Pairs of rate and batch at one N and D."""

    run: Sweep
    data: SweepTokens
    search: RateSearch

    def find_trial(self, config: Config) -> Trial:
        """See Work."""
        named = config.get("name")
        pair = find_pair(named) if named else name_drawn_pair(self.search, config)
        return plan_search(self.run, self.search, self.data, [pair])[0]

    def do(self, trial: Trial, alone: Alone, report: Report) -> None:
        """See Work."""
        train_searched(self.run, self.search, trial, self.data, alone, report)


def main(channel: Connection) -> None:
    """Do the trial that the channel gives, and say there how it goes and how it ended.

    What the user has to mend, and a stop request, are results; any other exception is told as a
    failure, with the place where it came.
    """
    pickled, config = channel.recv()
    work: TrialTask = pickle.loads(pickled)
    if not work.run.trials.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # else all trials of a node share its first

    ended: dict[str, Any] = {"loss": math.inf, "percent": 100.0}

    def report(result: Mapping[str, Any]) -> None:
        ended.update(result)
        channel.send(Said(result))
        channel.recv()

    alone = Alone(StopFile(storage.join(work.run.output, FILE)))
    with only_rank():
        try:
            with follow_lease(work.run.output):
                work.do(work.find_trial(config), alone, report)
        except Unfinished:
            ended["stopped"] = True
        except InputError as error:
            ended |= {"problem": str(error), "kind": type(error).__name__}
        except Exception as error:
            traceback.print_exc()  # to the log of the worker
            channel.send(_build_failure(error, alone))
            return
    channel.send(TrialEnded(ended | {"training": alone.training_seconds}))


def _build_failure(error: Exception, alone: Alone) -> TrialFailure:
    line = format_last_line(error)
    memory = is_out_of_memory(f"{type(error).__name__}: {error}")
    return TrialFailure(line, alone.run, alone.step, exception=line, memory=memory)
