"""What a failure of a trial leads to, by the restart policy of training runs.

Tune starts a trial again that failed, on whatever node has room, and counts how often. Whether it
is the same failure again, and how long to back off, is decided here, from a record of failures
beside the trials: it outlives the process, the actor and the node that failed.
"""

import json
from dataclasses import asdict, dataclass

from trainrig import storage
from trainrig.processes.retry_policy import GiveUp
from trainrig.train.elastic.restart_policy import Failure, RestartPolicy
from trainrig.train.fault_settings import Faults


@dataclass(frozen=True)
class TrialFailure:
    """How one try at a trial ended."""

    problem: str  # in one line
    run: str = ""  # the run folder that it was at; empty where it could not say so any more
    step: int = 0  # updates done there
    exception: str | None = None  # type and message, of what it raised itself
    memory: bool = False  # what it raised says that there was too little


@dataclass(frozen=True)
class FailureRecord:
    """The failures of one trial in one call of the sweep, in the file at `path`."""

    path: str
    retries: int  # failures without progress that are followed by another try

    @classmethod
    def of_trial(cls, folder: str, trial_id: str, retries: int) -> "FailureRecord":
        """Of the trial with that id of Tune's, among those in `folder`."""
        return cls(storage.join(folder, f"{trial_id}.json"), retries)

    def read_failures(self) -> list[TrialFailure]:
        """Those so far, in order."""
        if not storage.exists(self.path):
            return []
        return [TrialFailure(**entry) for entry in json.loads(storage.read(self.path))]

    def decide_retry(self, failure: TrialFailure) -> float | GiveUp:
        """Seconds to wait before the next try after `failure`, which is put on record; GiveUp where
        that would meet it too."""
        failures = [*self.read_failures(), failure]
        storage.write(self.path, json.dumps([asdict(each) for each in failures]).encode())
        # Runs of a trial follow each other: the same step of another is another place.
        policy = RestartPolicy(Faults(max_restarts=self.retries), step=0)
        verdict: float | GiveUp = 0.0
        for each in failures:
            if each.run == failure.run:
                verdict = policy.decide_after(_as_failure(each), each.step)
        return verdict


def _as_failure(failure: TrialFailure) -> Failure:
    return Failure(
        problem=failure.problem,
        seen_by="trial",
        step=failure.step,
        exception=failure.exception,
        memory=failure.memory,
    )
