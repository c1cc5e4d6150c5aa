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
from trainrig.processes.lease import follow_lease
from trainrig.processes.stop_file import FILE
from trainrig.scaling.sweep.run_file import Sweep
from trainrig.scaling.sweep.search_settings import RateSearch, name_drawn_pair, parse_pair
from trainrig.scaling.sweep.search_trials import train_searched
from trainrig.scaling.sweep.trial import (
    SingleRankTrainer,
    StopFile,
    join_single_rank_group,
    train_trial,
)
from trainrig.scaling.sweep.trial_agent import TrialEnded, TrialUpdate
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

    def do(self, trial: Trial, alone: SingleRankTrainer, report: Report) -> None:
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

    def do(self, trial: Trial, alone: SingleRankTrainer, report: Report) -> None:
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
        name = config.get("name")
        pair = parse_pair(name) if name else name_drawn_pair(self.search, config)
        return plan_search(self.run, self.search, self.data, [pair])[0]

    def do(self, trial: Trial, alone: SingleRankTrainer, report: Report) -> None:
        """Train `trial`, and report its loss at each rung."""
        train_searched(self.run, self.search, trial, self.data, alone, report)


def main(channel: Connection) -> None:
    """Train the trial that the channel names, and send its reports and its end to the channel.

    An error that the user must fix (InputError) and a stop request are sent as results. Any other
    exception is sent as a failure, with the last line of its traceback.
    """
    pickled, config = channel.recv()
    task: TrialTask = pickle.loads(pickled)
    if not task.run.trials.gpus:
        # otherwise all trials of a node would share its first GPU
        os.environ["CUDA_VISIBLE_DEVICES"] = ""

    result_at_end: dict[str, Any] = {"loss": math.inf, "percent": 100.0}

    def report(result: Mapping[str, Any]) -> None:
        result_at_end.update(result)
        channel.send(TrialUpdate(result))
        channel.recv()

    alone = SingleRankTrainer(StopFile(storage.join(task.run.output, FILE)))
    with join_single_rank_group():
        try:
            with follow_lease(task.run.output):
                task.do(task.find_trial(config), alone, report)
        except Unfinished:
            result_at_end["stopped"] = True
        except InputError as error:
            result_at_end |= {"problem": str(error), "kind": type(error).__name__}
        except Exception as error:
            traceback.print_exc()  # goes to the log of the worker
            channel.send(_build_failure(error, alone))
            return
    channel.send(TrialEnded(result_at_end | {"training": alone.training_seconds}))


def _build_failure(error: Exception, alone: SingleRankTrainer) -> TrialFailure:
    line = format_last_line(error)
    memory = is_out_of_memory(f"{type(error).__name__}: {error}")
    return TrialFailure(line, alone.run, alone.step, exception=line, memory=memory)
