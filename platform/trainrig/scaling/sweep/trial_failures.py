"""Record of a trial's failures, and the decision to retry, by the restart policy of training.

Tune restarts a failed trial on any node with free resources, and counts the restarts. This module
decides whether a failure repeats and how long to back off. Its record lies next to the trials, so
that it outlives the process, the actor and the node that failed.
"""

import json
from dataclasses import asdict, dataclass

from trainrig import storage
from trainrig.processes.retry_policy import GiveUp
from trainrig.train.elastic.restart_policy import Failure, RestartPolicy
from trainrig.train.run_file.worker_settings import Faults


@dataclass(frozen=True)
class TrialFailure:
    """Failure of one attempt at a trial."""

    problem: str  # description in one line
    run: str = ""  # folder of the current run; empty if it is not known
    step: int = 0  # number of updates done in that run
    exception: str | None = None  # type and message of the exception that the trial raised, if any
    memory: bool = False  # true if the exception says that memory ran out


@dataclass(frozen=True)
class FailureRecord:
    """Failures of one trial in one call of the sweep, stored in the file at `path`."""

    path: str
    retries: int  # number of failures without progress after which the trial is retried

    @classmethod
    def for_trial(cls, folder: str, trial_id: str, retries: int) -> "FailureRecord":
        """Return the record of the trial with Tune's id `trial_id`, which lies in `folder`."""
        return cls(storage.join(folder, f"{trial_id}.json"), retries)

    def read_failures(self) -> list[TrialFailure]:
        """Return the failures so far, in their order."""
        if not storage.exists(self.path):
            return []
        return [TrialFailure(**entry) for entry in json.loads(storage.read(self.path))]

    def decide_retry(self, failure: TrialFailure) -> float | GiveUp:
        """Record `failure`, and return the seconds to wait before the next attempt.

        Returns GiveUp if the next attempt would fail in the same way.
        """
        failures = [*self.read_failures(), failure]
        storage.write(self.path, json.dumps([asdict(entry) for entry in failures]).encode())
        # Only failures of the same run count, because the same step of another run is another
        # place.
        policy = RestartPolicy(Faults(max_restarts=self.retries), step=0)
        verdict: float | GiveUp = 0.0
        for earlier in failures:
            if earlier.run == failure.run:
                verdict = policy.decide_after(_convert_failure(earlier), earlier.step)
        return verdict


def _convert_failure(failure: TrialFailure) -> Failure:
    return Failure(
        problem=failure.problem,
        seen_by="trial",
        step=failure.step,
        exception=failure.exception,
        memory=failure.memory,
    )
