"""Entry point of a trial's process, which does not depend on Ray.

The process receives its task by pickle. It needs nothing else but the folders that the task names.
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
    """Task of a trial's process: how its trials are found and trained."""

    @property
    def run(self) -> Sweep:
        """The sweep that the trials belong to."""

    def find_trial(self, config: Config) -> Trial:
        """Return the trial that `config` names."""

    def do(self, trial: Trial, alone: Alone, report: Report) -> None:
        """Train `trial`. The process may be ended during a call of `report`."""


@dataclass(frozen=True)
class TrainedTrials:
    """Task of training the points of a law.

    It reports nothing while it trains, so that no scheduler can stop it.
    """

    run: Sweep
    data: SweepTokens
    trials: Mapping[str, Trial]

    def find_trial(self, config: Config) -> Trial:
        """Return the trial that `config` names."""
        return self.trials[config["name"]]

    def do(self, trial: Trial, alone: Alone, report: Report) -> None:
        """Train all runs of `trial`."""
        train_trial(self.run, trial, self.data, alone)


@dataclass(frozen=True)
class SearchedPairs:
    """Task of training the pairs of a search for rate and batch, at one N and D."""

    run: Sweep
    data: SweepTokens
    search: RateSearch

    def find_trial(self, config: Config) -> Trial:
        """Return the trial that `config` names, or whose factors `config` has drawn."""
        named = config.get("name")
        pair = find_pair(named) if named else name_drawn_pair(self.search, config)
        return plan_search(self.run, self.search, self.data, [pair])[0]

    def do(self, trial: Trial, alone: Alone, report: Report) -> None:
        """Train `trial`, and report its loss at each rung."""
        train_searched(self.run, self.search, trial, self.data, alone, report)


def main(channel: Connection) -> None:
    """Train the trial that the channel names, and send its reports and its end to the channel.

    An error that the user must fix (InputError) and a stop request are sent as results. Any other
    exception is sent as a failure, with the last line of its traceback.
    """
    pickled, config = channel.recv()
    work: TrialTask = pickle.loads(pickled)
    if not work.run.trials.gpus:
        # otherwise all trials of a node would share its first GPU
        os.environ["CUDA_VISIBLE_DEVICES"] = ""

    ended: dict[str, Any] = {"loss": math.inf, "percent": 100.0}

    def report(result: Mapping[str, Any]) -> None:
        ended.update(result)
        channel.send(Said(result))
        channel.recv()

    alone = Alone(StopFile(storage.join(work.run.output, FILE)))
    with only_rank():
        try:
            work.do(work.find_trial(config), alone, report)
        except Unfinished:
            ended["stopped"] = True
        except InputError as error:
            ended |= {"problem": str(error), "kind": type(error).__name__}
        except Exception as error:
            traceback.print_exc()  # goes to the log of the worker
            channel.send(_build_failure(error, alone))
            return
    channel.send(TrialEnded(ended | {"training": alone.training_seconds}))


def _build_failure(error: Exception, alone: Alone) -> TrialFailure:
    line = format_last_line(error)
    memory = is_out_of_memory(f"{type(error).__name__}: {error}")
    return TrialFailure(line, alone.run, alone.step, exception=line, memory=memory)
