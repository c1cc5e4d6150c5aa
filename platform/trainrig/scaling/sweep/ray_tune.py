"""Training of trials on Ray Tune.

Tune places the trials, as many at a time as resources allow, and restarts those whose processes
died. The trials run in Tune's actors, which are reused from trial to trial and keep their imports.
"""

import logging
import os
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trainrig import errors, storage
from trainrig.errors import ClusterError, ClusterLost, TrainrigError, Unfinished
from trainrig.manifest import SCRATCH, Stage
from trainrig.processes.stop_file import FILE, StopRequests
from trainrig.ray_runtime import ray_pools
from trainrig.ray_runtime.ray_local import end_own, keep_logs, raise_if_lost
from trainrig.ray_runtime.ray_session import join
from trainrig.ray_runtime.worker_space import wait_until_fit
from trainrig.scaling.sweep.rate_search import Optuna, RateSearch
from trainrig.scaling.sweep.sweep_progress import POLL, Show, SweepProgress
from trainrig.scaling.sweep.sweep_run_file import Sweep, Trials
from trainrig.scaling.sweep.trial_agent import FailureRecord
from trainrig.scaling.sweep.trial_process import Config, TrialTask
from trainrig.train.elastic.trainer import check_fit, start_fork_servers

log = logging.getLogger(__name__)
# Environment variables that Tune reads when it starts. Values set by the user are kept.
ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # Tune's loggers would only repeat the run folders
    "RAY_AIR_NEW_OUTPUT": "0",  # turns off Tune's own progress output
}


def connect_for_trials(run: Sweep) -> None:
    """Connect to Ray or start it, and wait until there is space for one trial.

    Nodes that the cluster's autoscaler may start count: waiting trials bring them up. Raises
    ConfigError if a trial never fits, and ClusterError if nodes that may join do not.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    join()
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # this module logs what matters

    wait_until_fit(lambda: _find_lack(run.trials))
    if run.large:
        check_fit(run.large.workers, what="large.workers")


def _find_lack(trials: Trials) -> str | None:
    """Return why no node, live or to come, holds a trial; None if one does."""
    pools = ray_pools.find_pools()
    wanted = [("trials.cpus", "CPU", trials.cpus), ("trials.gpus", "GPU", trials.gpus)]
    offers = ray_pools.list_offers(pools)
    need = {kind: amount for _, kind, amount in wanted if amount}
    if pools is None or not need or any(ray_pools.count_places(offer, need) for offer in offers):
        return None
    which = f"node that may be added ({'; '.join(map(str, pools))})" if pools else "node of Ray"
    for key, kind, amount in wanted:
        most = max((offer.get(kind, 0) for offer in offers), default=0)
        if amount > most:
            has = f"no {which} has more than {most:g} {kind}"
            return f"{key} = {amount:g}, but {has}; lower it, or add nodes"
    return (
        f"trials.cpus = {trials.cpus:g} and trials.gpus = {trials.gpus:g}, but no {which} has "
        "both; lower one of them, or add nodes"
    )


class TrialsOnTune:
    """Set of trials trained on Ray Tune: the points of a law, or the pairs of a search.

    A trial *fails* if its processes died more than `trials.retries` times; the other trials go on.
    A *problem* is an error that the user must fix; it stops all trials.
    """

    def __init__(
        self,
        stage: Stage,
        run: Sweep,
        work: TrialTask,
        progress: SweepProgress,
        failed: dict[str, str],
    ) -> None:
        """Prepare the trials; the reasons of failed ones are added to `failed`, keyed by name."""
        self._stage = stage
        self._run = run
        self._work = work
        self._progress = progress
        self._failed = failed
        # Name of the Tune experiment. Tune would continue an earlier experiment of the same name.
        self._experiment = f"{os.getpid()}-{time.time_ns()}"
        self._records = stage.build_path(SCRATCH, "failures", self._experiment)
        self.trials = 0  # number of trials that have ended
        self.seconds = 0.0  # sum of the trials' durations, from start to end
        self.training_seconds = 0.0  # the part of it that updates and held-out losses took
        self._began: dict[str, float] = {}
        self._problem: TrainrigError | None = None
        self._stopped = False
        self._results: Any = None
        self._error: BaseException | None = None

    def train(
        self, names: Sequence[str], settings: Mapping[str, Any], stop: StopRequests, show: Show
    ) -> None:
        """Train the trials called `names`, or those that a search draws.

        `settings` are arguments for Tune. A search gives a "space" of factors for the learning rate
        and the batch size; each pair that is drawn from it is a trial.
        """
        finished = threading.Event()

        def fit() -> None:
            try:
                self._results = self._build_tuner(names, settings).fit()
            except BaseException as error:
                self._error = error
            finally:
                finished.set()

        # Tune runs in a thread: this one stays free for signals, and Tune installs no handlers.
        threading.Thread(target=fit, name="tune", daemon=True).start()
        stop_requested = False
        while not finished.wait(POLL):
            self._raise_if_lost()
            self._progress.show(show)
            if not stop_requested and (stop.read_request() or self._problem):
                # The processes of trials watch for this file.
                storage.write(storage.join(self._run.output, FILE), b"")
                stop_requested = True
        self._progress.show(show)
        stopped_by = stop.read_request()
        stop.remove_request()
        if self._error:
            raise self._error
        self._conclude(stopped_by)

    def _raise_if_lost(self) -> None:
        """Raise Unfinished if Ray is no more: Tune would wait for its head for ever."""
        try:
            raise_if_lost()
        except ClusterLost as lost:
            keep_logs()
            end_own()
            raise Unfinished(
                f"{self._run.output}: {lost}; each trial is saved up to its last checkpoint. Run "
                "the same command again to resume"
            ) from None

    def _conclude(self, stopped_by: str | None) -> None:
        """Raise the error with which the trials ended, if there is one."""
        if self._problem:
            raise self._problem
        if self._stopped:
            raise Unfinished(
                f"{self._run.output}: stopped by {stopped_by}; each trial is saved. Run the same "
                "command again to resume"
            )
        if self._failed:
            name, reason = next(iter(sorted(self._failed.items())))
            raise ClusterError(
                f"{self._run.output}: {len(self._failed)} trials failed (the first, {name}: "
                f"{reason}); the others are done. Run the same command again to resume"
            )

    def _open_record(self, trial_id: str) -> FailureRecord:
        return FailureRecord.for_trial(self._records, trial_id, self._run.trials.retries)

    def _build_tuner(self, names: Sequence[str], settings: Mapping[str, Any]) -> Any:
        from ray import tune

        servers = start_fork_servers()
        work = pickle.dumps(self._work)
        records = self._records
        retries = self._run.trials.retries

        # This function is pickled by value because no module has it, so Tune's actors do not import
        # this module and torch with it.
        def run_in_actor(config: Config) -> None:
            import ray
            from ray import tune

            from trainrig.scaling.sweep.trial_agent import FailureRecord, run_trial

            node = ray.get_runtime_context().get_node_id()
            trial_id = tune.get_context().get_trial_id()
            record = FailureRecord.for_trial(records, trial_id, retries)
            run_trial(
                servers.get(node), work, config, lambda result: tune.report(dict(result)), record
            )

        tune_settings = dict(settings)
        wanted = self._run.trials
        space = tune_settings.pop("space", {"name": tune.grid_search(list(names))})
        resources = {"cpu": wanted.cpus} | ({"gpu": wanted.gpus} if wanted.gpus else {})
        return tune.Tuner(
            tune.with_resources(run_in_actor, resources),
            param_space=space,
            tune_config=tune.TuneConfig(
                reuse_actors=True, max_concurrent_trials=wanted.at_once, **tune_settings
            ),
            run_config=tune.RunConfig(
                name=self._experiment,
                storage_path=self._stage.build_path(SCRATCH, "tune"),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=wanted.retries),
                callbacks=[self._build_listener()],
            ),
        )

    def _build_listener(self) -> Any:
        from ray import tune

        outer = self

        class Listener(tune.Callback):
            """Callback that follows the trials, in the thread that Tune runs in."""

            def on_trial_start(self, iteration: int, trials: Any, trial: Any, **more: Any) -> None:
                outer._begin(trial.trial_id, trial.config)

            def on_trial_complete(
                self, iteration: int, trials: Any, trial: Any, **more: Any
            ) -> None:
                outer._end(trial.trial_id, trial.config, trial.last_result or {})

            def on_trial_recover(
                self, iteration: int, trials: Any, trial: Any, **more: Any
            ) -> None:
                name = outer._work.find_trial(trial.config).name
                failures = outer._open_record(trial.trial_id).read_failures()
                problem = failures[-1].problem if failures else "its node or its actor died"
                log.warning("trial %s: %s; it resumes from its last checkpoint", name, problem)

            def on_trial_error(self, iteration: int, trials: Any, trial: Any, **more: Any) -> None:
                failures = outer._open_record(trial.trial_id).read_failures()
                last = failures[-1].problem if failures else "its node or its actor died"
                retries = outer._run.trials.retries
                reason = (
                    f"failed more often than trials.retries = {retries} allows; the last: {last}"
                )
                outer._end(trial.trial_id, trial.config, {"failed": reason})

        return Listener()

    def _begin(self, trial_id: str, config: Config) -> None:
        self._began.setdefault(trial_id, time.monotonic())
        self._progress.begin_trial(self._work.find_trial(config))

    def _end(self, trial_id: str, config: Config, result: Config) -> None:
        self.trials += 1
        self.seconds += time.monotonic() - self._began.pop(trial_id)
        self.training_seconds += result.get("training", 0.0)
        self._stopped |= result.get("stopped", False)
        if "problem" in result and not self._problem:
            # a result names the class of its error
            self._problem = getattr(errors, result["kind"])(result["problem"])
        trial = self._work.find_trial(config)
        if "failed" in result:
            self._failed[trial.name] = result["failed"]
            log.warning("trial %s failed: %s", trial.name, result["failed"])
        self._progress.end_trial(trial)


def build_search_settings(search: RateSearch) -> dict[str, Any]:
    """Return the arguments for Tune of a search: its space, searcher and scheduler."""
    from ray import tune
    from ray.tune.schedulers import AsyncHyperBandScheduler

    settings: dict[str, Any] = {"metric": "loss", "mode": "min"}
    if search.scheduler:
        settings["scheduler"] = AsyncHyperBandScheduler(
            time_attr="percent",
            max_t=101,  # above 100, so that no trial is stopped for having reached its end
            grace_period=max(1, round(100 * search.scheduler.first)),
            reduction_factor=search.scheduler.keep,  # one trial in `keep` continues at each rung
        )
    if not isinstance(search.searcher, Optuna):
        return settings
    from ray.tune.search.optuna import OptunaSearch

    bounds = {"rate": search.rate_factors, "batch": search.batch_factors}
    return settings | {
        "space": {
            name: tune.loguniform(min(factors), max(factors))
            for name, factors in bounds.items()
            if len(set(factors)) > 1
        },
        "search_alg": OptunaSearch(metric="loss", mode="min", seed=search.searcher.seed),
        "num_samples": search.searcher.draws,
    }
