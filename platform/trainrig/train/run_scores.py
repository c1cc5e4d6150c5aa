"""The scores of a run on its ranks: computed between steps, waited for, and decided by."""

import time
from collections.abc import Callable, Mapping
from enum import Enum

import torch.distributed as dist

from trainrig.errors import ClusterError
from trainrig.parallel.stop_consensus import StopConsensus
from trainrig.train import evaluations
from trainrig.train.checkpoint import list_committed
from trainrig.train.run import checkpoint_scores
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.training_job import TrainingJob

LOOK_EVERY = 0.2  # s between two checks for a score


class Next(Enum):
    """Decision of all ranks on how the run continues after a step."""

    GO_ON = "continue"
    STOP = "stop"  # because all ranks agreed to stop
    END = "end"  # the run ends before its last step


class RunScores:
    """Scores of a run on one rank of one attempt. All ranks must call the same methods."""

    def __init__(
        self,
        job: TrainingJob,
        attempt: TrainingAttempt,
        agreement: StopConsensus,
        agreed_to_stop: Callable[[str], bool],
        settle: Callable[[], None],
    ) -> None:
        """Set up the scores of an attempt at `job`.

        `agreed_to_stop` is called with what the ranks are doing, and returns the same on all ranks.
        `settle` waits until no checkpoint is being written.
        """
        self._training = job.training
        self._attempt = attempt
        self._folder = RunFolder(job.folder)
        self._agreement = agreement
        self._agreed_to_stop = agreed_to_stop
        self._settle = settle
        self._first = dist.get_rank() == 0
        self._looked_at = -1  # the step of the last decision

    def decide_after(self, step: int) -> Next:
        """Score the checkpoint of `step` where workers do that, and return how the run continues.

        Waits for scores that decisions need. Collective.
        """
        if step == self._looked_at:  # decided already; data was skipped since
            return Next.GO_ON
        if not self.ask_workers(step):
            return Next.STOP
        if not all(self._wait_for_score(named, step) for named in self._list_named()):
            return Next.STOP
        self._looked_at = step
        return Next.END if self._decide_end(step) else Next.GO_ON

    def ask_workers(self, step: int, to_the_end: bool = False) -> bool:
        """Score the checkpoint of `step` by the evaluations that run on the workers. Collective.

        Returns False if all ranks agreed to stop, which `to_the_end` prevents.
        """
        for evaluation in self._training.evaluations:
            due = evaluation.where == "workers" and evaluation.due(step, self._training.steps)
            if due and not self._ask(evaluation, step, to_the_end):
                return False
        return True

    def _list_named(self) -> list[evaluations.NamedScore]:
        return [named for named in (self._training.stop_if, self._training.best) if named]

    def _find_evaluation(self, name: str) -> evaluations.RunEvaluation:
        return next(
            evaluation for evaluation in self._training.evaluations if evaluation.name == name
        )

    # --- scoring on the workers

    def _ask(self, evaluation: evaluations.RunEvaluation, step: int, to_the_end: bool) -> bool:
        self._settle()
        found: list[tuple[str, int] | None] = [None]
        if self._first and not self._is_known(evaluation.name, step):
            found = [self._find_checkpoint(step)]
        dist.broadcast_object_list(found, src=0)
        if found[0] is None:  # the checkpoint is scored already, or could not be saved
            return True
        path, number = found[0]
        output = checkpoint_scores.scorecard_folder(self._folder, evaluation.name, step, number)
        threads = self._training.threads
        scoring = checkpoint_scores.make_scoring(
            checkpoint_scores.ScoringRequest(evaluation, path, output, "auto", threads)
        )
        if not self._ask_by_all(scoring, to_the_end):
            return False
        if self._first:
            scores: Mapping[str, evaluations.CheckpointScore] = scoring.finish()
            checkpoint_scores.write_scores(
                self._folder, evaluations.ScoredCheckpoint(evaluation.name, step, number, scores)
            )
        # all wait here for rank 0; a stop request takes effect at the next question
        self._agreed_to_stop("score")
        return True

    def _ask_by_all(self, scoring: checkpoint_scores.Scoring, to_the_end: bool) -> bool:
        if self._first:
            scoring.begin()
        self._agreement.any(False)  # all ranks wait until the folder is prepared
        parts = scoring.share(dist.get_rank(), dist.get_world_size())
        ended = object()
        while True:
            more = next(parts, ended) is not ended
            if self._agreed_to_stop("score") and not to_the_end:
                return False
            if not self._agreement.any(more):
                return True

    # --- decisions

    def _wait_for_score(self, named: evaluations.NamedScore, step: int) -> bool:
        """Wait until the score for the decision after `step` is known. Collective.

        Returns False if all ranks agreed to stop. Raises ClusterError if the checkpoint could not
        be scored, and ConfigError if it has no such score. A checkpoint that was never saved has no
        score, and nothing is decided by it.
        """
        evaluation = self._find_evaluation(named.evaluation)
        scored = step - named.lag
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
        found: list[evaluations.ScoredCheckpoint | None] = [None]
        if self._first:
            known_scores = checkpoint_scores.read_scores(self._folder, evaluation.name)
            found = [next(checkpoint for checkpoint in known_scores if checkpoint.step == scored)]
        dist.broadcast_object_list(found, src=0)
        assert found[0] is not None
        if found[0].problem is not None:
            raise ClusterError(
                f"{self._folder.path}: '{evaluation.name}' could not score the checkpoint "
                f"of step {scored}, and the run's decisions need this score: "
                f"{found[0].problem}"
            )
        found[0].find(named)  # raises on all ranks alike where it has no such score
        return True

    def _decide_end(self, step: int) -> bool:
        """Return whether the run ends after `step`, by the scores up to `lag` steps before."""
        rule = self._training.stop_if
        if rule is None:
            return False
        scored = step - rule.lag
        if not self._find_evaluation(rule.evaluation).due(scored, self._training.steps):
            return False
        why: list[str | None] = [None]
        if self._first:
            known = checkpoint_scores.read_usable_scores(self._folder, rule.evaluation)
            until = [checkpoint for checkpoint in known if checkpoint.step <= scored]
            if until and until[-1].step == scored:
                why = [evaluations.find_stop_reason(rule, until)]
            if why[0]:
                checkpoint_scores.write_end(
                    self._folder, checkpoint_scores.EarlyEnd(step, self._attempt.number, why[0])
                )
                self._record("run_ended_by_score", step=step, why=why[0])
        dist.broadcast_object_list(why, src=0)
        return why[0] is not None

    def _is_known(self, evaluation: str, step: int) -> bool:
        return any(
            checkpoint.step == step
            for checkpoint in checkpoint_scores.read_scores(self._folder, evaluation)
        )

    def _find_checkpoint(self, step: int) -> tuple[str, int] | None:
        """Return folder and attempt of the checkpoint of `step` that counts, if there is one."""
        for path, found, number in list_committed(self._folder, self._folder.checkpoints):
            if found == step:
                return path, number
        return None

    def _record(self, event: str, **details: object) -> None:
        self._folder.record(event, attempt=self._attempt.number, **details)
