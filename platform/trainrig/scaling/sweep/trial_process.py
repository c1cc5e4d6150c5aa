"""Entry point of a trial's process, and the trials of a search, which it trains rung by rung.

The process receives its task by pickle. It needs nothing else but the folders that the task names,
and does not depend on Ray.
"""

import math
import os
import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from trainrig import storage
from trainrig.errors import DataError, Diverged, InputError, Unfinished
from trainrig.manifest import MANIFEST
from trainrig.processes.lease import follow_lease
from trainrig.processes.stop_file import FILE
from trainrig.scaling.sweep import rate_search
from trainrig.scaling.sweep.sweep_run_file import Sweep
from trainrig.scaling.sweep.trial import (
    SingleRankTrainer,
    StopFile,
    claim_output,
    is_over,
    join_single_rank_group,
    read_diverged,
    train_trial,
    write_diverged,
)
from trainrig.scaling.sweep.trial_agent import TrialEnded, TrialFailure, TrialUpdate
from trainrig.scaling.sweep.trials import (
    SEARCH,
    SweepTokens,
    Trial,
    build_run_file,
    name_run_folder,
    plan_search,
)
from trainrig.train.elastic.failure_cause import format_last_line, is_out_of_memory
from trainrig.train.run import metrics

Report = Callable[[Mapping[str, Any]], None]


def train_searched(
    sweep: Sweep,
    search: rate_search.RateSearch,
    trial: Trial,
    data: SweepTokens,
    alone: SingleRankTrainer,
    report: Report,
) -> None:
    """Train `trial`, and report the held-out loss and the percentage of its steps at each rung.

    `report` may not return, in which case the trial ends there. Raises Unfinished on a stop
    request.
    """
    (length,) = trial.lengths
    folder = name_run_folder(sweep, trial, length)
    for step in rate_search.list_rungs(search.scheduler, length.steps):
        if not is_over(folder):
            stage, job = claim_output(build_run_file(sweep, trial, length, data))
            try:
                if step == length.steps:
                    alone(stage, job)
                elif not alone.train_until(job, step):
                    return
            except Diverged as error:
                write_diverged(folder, str(error))
        loss = math.inf if read_diverged(folder) else _read_losses(folder).get(step, math.inf)
        report({"loss": loss, "percent": 100 * step / length.steps})


def list_tried_pairs(sweep: Sweep) -> tuple[rate_search.RateBatchPair, ...]:
    """Return all pairs that have a trial on disk, by name."""
    folders = storage.list_folders(storage.join(sweep.output, SEARCH))
    names = sorted(folder.rstrip("/").rpartition("/")[2] for folder in folders)
    return tuple(rate_search.parse_pair(name) for name in names)


def collect_tried(
    sweep: Sweep, trials: Sequence[Trial], pairs: Sequence[rate_search.RateBatchPair]
) -> tuple[rate_search.TriedPair, ...]:
    """Return the results of `pairs`, whose trials are given in the same order."""
    found = []
    for trial, pair in zip(trials, pairs, strict=True):
        (length,) = trial.lengths
        folder = name_run_folder(sweep, trial, length)
        whole = storage.exists(storage.join(folder, MANIFEST))
        losses = _read_losses(folder)
        last = max(losses, default=0)
        loss = math.nan if read_diverged(folder) else losses.get(last, math.nan)
        found.append(rate_search.TriedPair(pair, loss, last, whole))
    return tuple(found)


def choose_pair(sweep: Sweep, found: Sequence[rate_search.TriedPair]) -> rate_search.RateBatchPair:
    """Return the best of the tried pairs; raise DataError if no trial finished."""
    pair = rate_search.find_best_pair(found)
    if pair is None:
        raise DataError(
            f"{storage.join(sweep.output, SEARCH)}: all {len(found)} pairs of rate and batch "
            "diverged or were stopped; try lower search.rate_factors"
        )
    return pair


def _read_losses(folder: str) -> dict[int, float]:
    """Return the held-out losses of a run, keyed by step; a loss that is not finite is infinite."""
    return {
        line["step"]: math.inf if line["eval/loss"] is None else line["eval/loss"]
        for line in metrics.read_held_out_series(folder)
    }


Config = Mapping[str, Any]


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
    search: rate_search.RateSearch

    def find_trial(self, config: Config) -> Trial:
        """Return the trial that `config` names, or whose factors `config` has drawn."""
        name = config.get("name")
        pair = (
            rate_search.parse_pair(name)
            if name
            else rate_search.name_drawn_pair(self.search, config)
        )
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
