"""Scores the checkpoints of a run in Ray tasks while it trains.

The driver watches the run folder, not the workers. It scores complete checkpoints that are due and
have no score, the oldest first, one at a time for each evaluation. So a new driver, or the retry of
a dead task, continues from the stored scores.
"""

import logging
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from trainrig import storage
from trainrig.errors import ClusterError, ClusterLost, OutputTaken, TrainrigError, Unfinished
from trainrig.processes.lease import follow_lease
from trainrig.processes.stop_file import StopRequests
from trainrig.ray_runtime.ray_local import call_while_ray_lives
from trainrig.ray_runtime.worker_space import WorkerPlace, find_place_beside
from trainrig.train.checkpoint import list_committed
from trainrig.train.checkpoint.manifest import clean_up
from trainrig.train.elastic.failure_cause import format_last_line
from trainrig.train.evaluations import CheckpointScore, RunEvaluation, ScoredCheckpoint
from trainrig.train.run import checkpoint_scores
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.training_job import TrainingJob

log = logging.getLogger(__name__)
LOOK_EVERY = 0.5  # s between two checks for a checkpoint to score
TRIES = 3  # tries of one checkpoint, if its task dies or raises
LONGEST_PROBLEM = 500  # characters of a recorded problem

Outcome = tuple[Mapping[str, CheckpointScore], str | None]
"""Scores, and the problem if there are none."""


class ScoringTasks:
    """Evaluations of one run, during the life of one driver; a context manager."""

    def __init__(self, job: TrainingJob, workers: int = 1) -> None:
        """Prepare the evaluations of `job`.

        `workers`: the most workers and actors that the run may have, which need the devices first.
        """
        self._training = job.training
        self._workers = workers
        self._folder = RunFolder(job.folder)
        self._closing = threading.Event()
        self._tries: dict[tuple[str, str], int] = {}  # tries so far, by evaluation and checkpoint
        self._broken: Exception | None = None  # the error that ended a scoring thread
        self._threads = [
            threading.Thread(
                target=self._run, args=(evaluation,), name=f"score {evaluation.name}", daemon=True
            )
            for evaluation in job.training.evaluations
            if evaluation.where == "task"
        ]

    def __enter__(self) -> Self:
        for evaluation in self._training.evaluations:
            checkpoint_scores.forget_failures(self._folder, evaluation.name)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join()

    def finish(self, stop: StopRequests) -> None:
        """Score every checkpoint that is due, then remove those kept only for that.

        Raises Unfinished if the run is asked to stop, and ClusterError if a scoring thread failed.
        """
        evaluations = self._training.evaluations
        if not evaluations:
            return
        for evaluation in evaluations:
            while self._list_unscored(evaluation):
                if self._broken:
                    raise ClusterError(f"{self._folder.path}: {self._broken}") from self._broken
                if how := stop.read_request():
                    stop.remove_request()
                    raise Unfinished(
                        f"{self._folder.path}: training is complete, but {how} stopped the run "
                        "before all "
                        "checkpoints were scored; run the same command to continue"
                    )
                if evaluation.where == "workers":  # the workers ended before they had scored it
                    self._score_oldest(evaluation)
                else:
                    self._closing.wait(LOOK_EVERY)
        newest = self._folder.read_attempts()[-1]
        settings = self._training.checkpoints
        clean_up(self._folder, self._folder.checkpoints, newest, settings, self._training)

    def _run(self, evaluation: RunEvaluation) -> None:
        try:
            while not self._closing.wait(LOOK_EVERY):
                while self._list_unscored(evaluation) and not self._closing.is_set():
                    self._score_oldest(evaluation)
        except Exception as error:  # `finish` raises it
            log.exception("evaluation '%s'", evaluation.name)
            self._broken = error

    def _list_unscored(self, evaluation: RunEvaluation) -> list[tuple[int, int, str]]:
        """Return (step, attempt, folder) of the checkpoints to score, the oldest first."""
        over = {
            score.step for score in checkpoint_scores.read_scores(self._folder, evaluation.name)
        }
        return sorted(
            (step, number, path)
            for path, step, number in list_committed(self._folder, self._folder.checkpoints)
            if step not in over and evaluation.due(step, self._training.steps)
        )

    def _score_oldest(self, evaluation: RunEvaluation) -> None:
        left = self._list_unscored(evaluation)
        if not left:
            return
        step, number, path = left[0]
        output = checkpoint_scores.scorecard_folder(self._folder, evaluation.name, step, number)
        began = time.monotonic()
        try:
            scores, problem = self._run_task(evaluation, path, output)
        except ClusterLost:  # the driver starts another cluster, or ends
            self._closing.wait(LOOK_EVERY)
            return
        if self._closing.is_set() and problem:
            return
        if problem is None:
            checkpoint_scores.write_scores(
                self._folder, ScoredCheckpoint(evaluation.name, step, number, scores)
            )
            self._record("evaluated", evaluation, step, seconds=round(time.monotonic() - began, 2))
            return
        key = evaluation.name, path
        self._tries[key] = tries = self._tries.get(key, 0) + 1
        if (step, number, path) not in self._list_unscored(evaluation):
            return  # the run has rolled back to before it
        self._record("evaluation_failed", evaluation, step, problem=problem, tries=tries)
        log.warning("evaluation '%s' of step %d: %s", evaluation.name, step, problem)
        if tries >= TRIES:
            failed = ScoredCheckpoint(evaluation.name, step, number, {}, problem)
            checkpoint_scores.write_scores(self._folder, failed)

    def _run_task(self, evaluation: RunEvaluation, checkpoint: str, output: str) -> Outcome:
        """Run a Ray task that scores `checkpoint`, and return its outcome.

        Raises ClusterLost if Ray is lost.
        """
        place = call_while_ray_lives(self._find_place)
        device = "auto" if place.gpus else "cpu"
        request = checkpoint_scores.ScoringRequest(evaluation, checkpoint, output, device, 1)
        task: Any = call_while_ray_lives(_start, request, self._folder.path, place)
        while not call_while_ray_lives(_is_over, task):
            if self._closing.is_set():
                call_while_ray_lives(_cancel, task)
                return {}, "the driver ended"
            if place.gpus and not call_while_ray_lives(self._find_place).gpus:
                # Nodes are lost: the workers need the GPU that the task runs on or waits for.
                call_while_ray_lives(_cancel, task)
                return self._run_task(evaluation, checkpoint, output)
        return call_while_ray_lives(_read_outcome, task)

    def _find_place(self) -> WorkerPlace:
        # A task may also score at the end what the workers have not scored.
        return find_place_beside(self._workers, max(1, len(self._threads)))

    def _record(self, event: str, evaluation: RunEvaluation, step: int, **details: object) -> None:
        self._folder.record(event, evaluation=evaluation.name, step=step, **details)


def _start(request: checkpoint_scores.ScoringRequest, folder: str, place: WorkerPlace) -> Any:
    """Start a Ray task that scores a checkpoint at `place`.

    It requests no CPU: if the workers hold all CPUs while they wait for its score, it would never
    start.
    """
    import ray

    task: Any = ray.remote(score_checkpoint)
    return task.options(
        num_cpus=0, num_gpus=place.gpus, label_selector=dict(place.selector), max_retries=0
    ).remote(request, folder)


def _is_over(task: Any) -> bool:
    import ray

    return bool(ray.wait([task], timeout=LOOK_EVERY)[0])


def _cancel(task: Any) -> None:
    import ray

    ray.cancel(task, force=True)


def _read_outcome(task: Any) -> Outcome:
    import ray
    from ray.exceptions import RayError

    try:
        outcome: Outcome = ray.get(task)
    except RayError as error:
        return {}, format_last_line(error)[:LONGEST_PROBLEM]
    return outcome


def score_checkpoint(request: checkpoint_scores.ScoringRequest, folder: str) -> Outcome:
    """Compute the scores for `request`, in a Ray task; return the problem if that fails."""
    name = request.evaluation.name
    try:
        with follow_lease(folder):
            started = {"evaluation": name, "checkpoint": request.checkpoint}
            RunFolder(folder).record("evaluation_started", **started)
            try:
                return checkpoint_scores.make_scoring(request).finish(), None
            except OutputTaken:  # a task on another device began it, whose scores may differ
                storage.delete_folder(request.output)
                return checkpoint_scores.make_scoring(request).finish(), None
    except TrainrigError as error:
        return {}, str(error)[:LONGEST_PROBLEM]
