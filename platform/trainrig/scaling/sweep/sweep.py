"""The sweep command: training of all trials, and the table that laws are fitted to.

Run folders record which trials have finished and where the others resume. Therefore a sweep
survives its driver, and a second call repeats no work. Small models are trained on Ray Tune
(`ray_tune.py`). Large models are trained one after another, each by a group of workers, like a
`pretrain` run.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from trainrig import manifest, storage
from trainrig.errors import ClusterError, Unfinished
from trainrig.manifest import Manifest, Stage
from trainrig.processes import lease
from trainrig.processes.stop_file import StopRequests
from trainrig.scaling.laws.runs_table import RUNS_FILE, RunsTable
from trainrig.scaling.sweep import rate_search, sweep_table, trial_process
from trainrig.scaling.sweep.budget_design import BudgetDesign
from trainrig.scaling.sweep.design_points import (
    build_budget_design,
    compute_usd_an_hour,
    list_design_points,
)
from trainrig.scaling.sweep.design_progress import (
    DESIGN_FILE,
    StagePrediction,
    check_earlier_design,
    is_narrow_enough,
    predict_target,
    report_stage,
    serialise_progress,
    summarise_prediction,
)
from trainrig.scaling.sweep.ray_tune import TrialsOnTune, build_search_settings, connect_for_trials
from trainrig.scaling.sweep.sweep_progress import POLL, Show, SweepProgress, show_progress
from trainrig.scaling.sweep.sweep_run_file import Sweep
from trainrig.scaling.sweep.sweep_tasks import check_tasks, make_paths_absolute
from trainrig.scaling.sweep.trial_process import SearchedPairs, TrainedTrials, TrialTask
from trainrig.scaling.sweep.trials import (
    SweepTokens,
    Trial,
    describe_smaller_batches,
    plan,
    plan_search,
    read_sweep_tokens,
)

__all__ = ["PLANNED_TRIALS", "Sweep", "SweepDriver", "sweep"]


PLANNED_TRIALS = "trials.json"

log = logging.getLogger(__name__)


def sweep(run: Sweep, show: Show = lambda done, of, rows: None) -> Manifest:
    """Train all points of `run`, resume an earlier call if there was one, and return the manifest.

    `show` receives the progress. Raises InputError before any training if the run cannot work,
    ClusterError if trials failed more often than allowed, and Unfinished on a stop request.
    """
    run = make_paths_absolute(run)
    tokens = manifest.read_input(run.tokens, "tokenize")
    data = read_sweep_tokens(run)
    given = rate_search.RateBatchPair(run.rate_factor, run.batch_factor)
    designed = build_budget_design(run, data)
    points = list_design_points(run, data, designed)
    plan(run, points, data, given)  # raises the errors of the design
    if run.search:
        run.search.searcher.check()
        plan_search(run, run.search, data, rate_search.list_pairs(run.search))
    compute_usd_an_hour(run)  # raises the errors of trials.instance
    check_tasks(run)
    inputs = {"tokens": tokens.content}
    stage = manifest.claim(run.output, run, inputs)
    if stage.finished:
        return stage.finished
    with lease.hold_lease(run.output):
        connect_for_trials(run)
        driver = SweepDriver(stage, run, data, show)
        found = driver.search(run.search) if run.search else rate_search.RateBatchPair(1.0, 1.0)
        trials = plan(
            run,
            points,
            data,
            rate_search.RateBatchPair(given.rate * found.rate, given.batch * found.batch),
        )
        if smaller := describe_smaller_batches(run, trials):
            log.warning("%s", smaller)
        if designed:
            check_earlier_design(run.output, trials)
            _write_progress(stage, designed, trials, [])
        trained, runs, predictions = driver.train_stages(trials, designed)
        runs.write(stage.build_path(RUNS_FILE))
        storage.write(stage.build_path(PLANNED_TRIALS), sweep_table.serialise_design(run, trained))
        names = [RUNS_FILE, PLANNED_TRIALS, *([rate_search.SEARCH_RESULT] if run.search else [])]
        counts = sweep_table.summarise_sweep(trained, data, runs)
        if designed:
            names.append(DESIGN_FILE)
            counts |= summarise_prediction(designed, predictions)
        files = {name: manifest.compute_file_sum(stage.build_path(name)) for name in names}
        return stage.finish(counts, files, driver.sum_cost())


class SweepDriver:
    """Driver that has the trials of one sweep trained."""

    def __init__(self, stage: Stage, run: Sweep, data: SweepTokens, show: Show) -> None:
        self._stage = stage
        self._run = run
        self._data = data
        self._show = show
        self._groups: list[TrialsOnTune] = []
        self._stopped_by: str | None = None  # the stop request that the last group met, if any
        self.failed: dict[str, str] = {}  # reasons, keyed by the name of the trial

    def train_stages(
        self, trials: Sequence[Trial], designed: BudgetDesign | None
    ) -> tuple[Sequence[Trial], RunsTable, Sequence[StagePrediction]]:
        """Train `trials` stage by stage, until a prediction is narrow enough or no stage is left.

        Returns the trials of the finished stages, the table of their runs, and the prediction after
        each stage of a designed sweep. If trials fail, the table is written before the error is
        raised. A stop request during the fit after a stage is obeyed before the next stage.
        """
        predictions: list[StagePrediction] = []
        for number in sorted({trial.stage for trial in trials}):
            trained = [trial for trial in trials if trial.stage <= number]
            try:
                self.train(trained)
            except ClusterError:
                if self.failed:
                    table = sweep_table.build_runs_table(
                        self._run, trained, self._data, self.failed
                    )
                    table.write(self._stage.build_path(RUNS_FILE))
                raise
            runs = sweep_table.build_runs_table(self._run, trained, self._data)
            if designed is None:
                continue
            with StopRequests(self._run.output) as stop:
                found = predict_target(designed.design, runs)
                stopped_by = self._stopped_by or stop.read_request()
            predictions.append(found)
            report_stage(designed, number, found)
            _write_progress(self._stage, designed, trials, predictions)
            if is_narrow_enough(designed.design, found):
                break
            if stopped_by and number + 1 < len(designed.stages):
                stop.remove_request()
                raise Unfinished(
                    f"{self._run.output}: stopped by {stopped_by} after stage {number + 1}; each "
                    "trial is saved. Run the same command again to resume"
                )
        return trained, runs, predictions

    def train(self, trials: Sequence[Trial]) -> None:
        """Train all unfinished runs of `trials`.

        The costliest trials start first, so that no long one runs alone at the end.
        """
        large_from = self._run.large.parameters if self._run.large else float("inf")
        progress = SweepProgress(
            self._run, sum(len(trial.lengths) for trial in trials), over=trials
        )
        left = [trial for trial in trials if not progress.is_over(trial)]
        left.sort(key=lambda trial: (-trial.work, trial.name))
        small = {trial.name: trial for trial in left if trial.ladder_model.parameters < large_from}
        if small:
            self._on_tune(TrainedTrials(self._run, self._data, small), progress, list(small), {})
        for trial in left:
            if trial.name not in small:
                self._train_large(trial, progress)

    def search(self, search: rate_search.RateSearch) -> rate_search.RateBatchPair:
        """Return the best factors, from this call's search or from an earlier one."""
        if earlier := rate_search.read_search_result(self._run.output):
            return earlier
        drawn = search.searcher.draws if isinstance(search.searcher, rate_search.Optuna) else 0
        names = [] if drawn else [pair.name for pair in rate_search.list_pairs(search)]
        progress = SweepProgress(self._run, drawn or len(names))
        work = SearchedPairs(self._run, self._data, search)
        self._on_tune(work, progress, names, build_search_settings(search))
        tried_pairs = trial_process.list_tried_pairs(self._run)
        trials = plan_search(self._run, search, self._data, tried_pairs)
        tried = trial_process.collect_tried(self._run, trials, tried_pairs)
        found = trial_process.choose_pair(self._run, tried)
        rate_search.write_search_result(self._run.output, search, found, tried)
        return found

    def sum_cost(self) -> dict[str, float]:
        """Return the seconds of wall time that trials took, in all and for training itself.

        The overhead per trial is included if there was a trial.
        """
        trials = sum(group.trials for group in self._groups)
        seconds = sum(group.seconds for group in self._groups)
        training = sum(group.training_seconds for group in self._groups)
        found = {"trial_seconds": round(seconds, 3), "training_seconds": round(training, 3)}
        if trials:
            found["overhead_seconds_a_trial"] = round((seconds - training) / trials, 3)
        return found

    def _on_tune(
        self,
        work: TrialTask,
        progress: SweepProgress,
        names: Sequence[str],
        settings: Mapping[str, Any],
    ) -> None:
        group = TrialsOnTune(self._stage, self._run, work, progress, self.failed)
        self._groups.append(group)
        with StopRequests(self._run.output) as stop:
            # a driver that was killed while it stopped may have left a stop file
            stop.remove_request()
            group.train(names, settings, stop, self._show)
            # a request that came after the last trial had ended stops none of them
            self._stopped_by = stop.read_request()

    def _train_large(self, trial: Trial, progress: SweepProgress) -> None:
        """Train the runs of one trial, each by a group of workers that Ray Train starts."""
        from trainrig.scaling.sweep.trial import check_sane, train_trial
        from trainrig.train.elastic import trainer
        from trainrig.train.pretrain import finish
        from trainrig.train.training_job import TrainingJob

        assert self._run.large is not None
        workers = self._run.large.workers

        def train_run(stage: Stage, job: TrainingJob) -> None:
            outcome = trainer.run(job, workers)
            check_sane(job)
            finish(stage, job, outcome)

        progress.begin_trial(trial)
        with show_progress(progress, self._show, POLL):
            try:
                train_trial(self._run, trial, self._data, train_run)
            except ClusterError as error:
                self.failed[trial.name] = str(error)
                raise
        progress.end_trial(trial)
        progress.show(self._show)


def _write_progress(
    stage: Stage,
    designed: BudgetDesign,
    trials: Sequence[Trial],
    predictions: Sequence[StagePrediction],
) -> None:
    content = serialise_progress(designed, trials, predictions)
    storage.write(stage.build_path(DESIGN_FILE), content)
