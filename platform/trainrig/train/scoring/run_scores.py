"""The scores of a run as its ranks see them: asked between steps, waited for, decided by."""

import time
from collections.abc import Callable, Mapping
from enum import Enum

import torch.distributed as dist

from trainrig.errors import ClusterError
from trainrig.parallel.stop_consensus import StopConsensus
from trainrig.train.checkpoint import list_committed
from trainrig.train.evaluations.decisions import CheckpointScore, ScoredCheckpoint, find_stop_reason
from trainrig.train.evaluations.settings import NamedScore, RunEvaluation
from trainrig.train.job import TrainingJob
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run.scores.records import (
    EarlyEnd,
    read_scores,
    read_usable_scores,
    scorecard_folder,
    write_end,
    write_scores,
)
from trainrig.train.scoring.contract import Scoring, ScoringRequest, make_scoring

LOOK_EVERY = 0.2  # s between two looks for a score


class Next(Enum):
    """What a rank does after a step, and all others with it."""

    GO_ON = "go on"
    STOP = "stop"  # as all agreed to, when asked
    END = "end"  # the run is at its end before its last step


class RunScores:
    """Of one rank of one attempt. All ranks must call the same methods."""

    def __init__(
        self,
        job: TrainingJob,
        attempt: TrainingAttempt,
        agreement: StopConsensus,
        agreed_to_stop: Callable[[str], bool],
        settle: Callable[[], None],
    ) -> None:
        """`agreed_to_stop` is told what is being done, and answers all ranks alike; `settle`
        returns once no checkpoint is being written."""
        self._training, self._attempt = job.training, attempt
        self._folder = RunFolder(job.folder)
        self._agreement, self._agreed_to_stop = agreement, agreed_to_stop
        self._settle = settle
        self._first = dist.get_rank() == 0
        self._looked_at = -1  # the step that was last decided after

    def decide_after(self, step: int) -> Next:
        """Have the workers score the checkpoint of `step` where they are to, and decide what is to
        be decided after it. Waits for scores that decisions need."""
        if step == self._looked_at:  # data was skipped since
            return Next.GO_ON
        if not self.ask_workers(step):
            return Next.STOP
        if not all(self._wait_for_score(each, step) for each in self._list_named()):
            return Next.STOP
        self._looked_at = step
        return Next.END if self._has_ended(step) else Next.GO_ON

    def ask_workers(self, step: int, to_the_end: bool = False) -> bool:
        """Have all ranks score the checkpoint of `step` by the evaluations that run on them; false:
        all agreed to stop instead, which `to_the_end` rules out."""
        for evaluation in self._training.evaluations:
            due = evaluation.where == "workers" and evaluation.due(step, self._training.steps)
            if due and not self._ask(evaluation, step, to_the_end):
                return False
        return True

    def _list_named(self) -> list[NamedScore]:
        return [each for each in (self._training.stop_if, self._training.best) if each]

    def _find_evaluation(self, name: str) -> RunEvaluation:
        return next(each for each in self._training.evaluations if each.name == name)

    # --- by the workers

    def _ask(self, evaluation: RunEvaluation, step: int, to_the_end: bool) -> bool:
        self._settle()
        found: list[tuple[str, int] | None] = [None]
        if self._first and not self._is_known(evaluation.name, step):
            found = [self._find_checkpoint(step)]
        dist.broadcast_object_list(found, src=0)
        if found[0] is None:  # known already, or it could not be saved
            return True
        path, number = found[0]
        output = scorecard_folder(self._folder, evaluation.name, step, number)
        threads = self._training.threads
        scoring = make_scoring(ScoringRequest(evaluation, path, output, "auto", threads))
        if not self._ask_by_all(scoring, to_the_end):
            return False
        if self._first:
            scores: Mapping[str, CheckpointScore] = scoring.finish()
            write_scores(self._folder, ScoredCheckpoint(evaluation.name, step, number, scores))
        self._agreed_to_stop("score")  # all wait for the first; who was asked to stop does so next
        return True

    def _ask_by_all(self, scoring: Scoring, to_the_end: bool) -> bool:
        if self._first:
            scoring.begin()
        self._agreement.any(False)  # it is ready
        parts = scoring.share(dist.get_rank(), dist.get_world_size())
        ended = object()
        while True:
            more = next(parts, ended) is not ended
            if self._agreed_to_stop("score") and not to_the_end:
                return False
            if not self._agreement.any(more):
                return True

    # --- decisions

    def _wait_for_score(self, named: NamedScore, step: int) -> bool:
        """Wait until the score that is decided by after `step` is known; false: all agreed to stop.

        Raises ClusterError if it could not be scored, ConfigError if that gave no such score. A
        checkpoint that was never saved has none, and nothing is decided by it.
        """
        evaluation, scored = self._find_evaluation(named.evaluation), step - named.lag
        if not evaluation.due(scored, self._training.steps):
            return True
        while True:
            known = self._first and self._is_known(evaluation.name, scored)
            if self._agreement.any(known):
                break
            self._settle()
            saved = self._first and self._find_checkpoint(scored) is not None
            if not self._agreement.any(saved):
                if self._first:
                    self._record("evaluation_missing", evaluation=evaluation.name, step=scored)
                return True
            if self._agreed_to_stop("wait for scores"):
                return False
            time.sleep(LOOK_EVERY)
        found: list[ScoredCheckpoint | None] = [None]
        if self._first:
            known_scores = read_scores(self._folder, evaluation.name)
            found = [next(each for each in known_scores if each.step == scored)]
        dist.broadcast_object_list(found, src=0)
        assert found[0] is not None
        if found[0].problem is not None:
            raise ClusterError(
                f"{self._folder.path}: the checkpoint of step {scored} could not be scored by "
                f"'{evaluation.name}', which the run is decided by: {found[0].problem}"
            )
        found[0].find(named)  # raises on all ranks alike where it has no such score
        return True

    def _has_ended(self, step: int) -> bool:
        """Whether the run is at its end after `step`, by the scores up to `lag` steps before."""
        rule = self._training.stop_if
        if rule is None:
            return False
        scored = step - rule.lag
        if not self._find_evaluation(rule.evaluation).due(scored, self._training.steps):
            return False
        why: list[str | None] = [None]
        if self._first:
            known = read_usable_scores(self._folder, rule.evaluation)
            until = [each for each in known if each.step <= scored]
            if until and until[-1].step == scored:
                why = [find_stop_reason(rule, until)]
            if why[0]:
                write_end(self._folder, EarlyEnd(step, self._attempt.number, why[0]))
                self._record("run_ended_by_score", step=step, why=why[0])
        dist.broadcast_object_list(why, src=0)
        return why[0] is not None

    def _is_known(self, evaluation: str, step: int) -> bool:
        return any(each.step == step for each in read_scores(self._folder, evaluation))

    def _find_checkpoint(self, step: int) -> tuple[str, int] | None:
        """Folder and attempt of the checkpoint of `step` that counts."""
        for path, found, number in list_committed(self._folder, self._folder.checkpoints):
            if found == step:
                return path, number
        return None

    def _record(self, event: str, **details: object) -> None:
        self._folder.record(event, attempt=self._attempt.number, **details)
