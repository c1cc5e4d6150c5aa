"""Code of a Tune actor: it runs a trial's process, passes on its reports, and decides on retries.

Each trial has its own process, forked from one that has made all imports. It starts in
milliseconds, and its resources are freed when it ends. This module imports neither torch nor Ray.

Tune restarts a failed trial on any node with free resources, and counts the restarts. This module
decides, by the restart policy of training, whether a failure repeats and how long to back off. Its
record lies next to the trials, so that it outlives the process, the actor and the node that failed.
"""

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainrig import storage
from trainrig.processes.fork_server import ForkedProcess, ForkServer, ProcessDied, ServerAddress
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
                facts = {key: value for key, value in asdict(earlier).items() if key != "run"}
                verdict = policy.decide_after(Failure(seen_by="trial", **facts), earlier.step)
        return verdict


WORK = "trainrig.scaling.sweep.trial_process"
MODULES = (WORK, "torch._dynamo", "boto3", "tensorboardX")
Result = Mapping[str, Any]
# least contents of the result of a trial that was given up
GAVE_UP = {"loss": float("inf"), "percent": 100.0}


@dataclass(frozen=True)
class TrialUpdate:
    """Report of a running trial, which waits for an answer."""

    result: Result


@dataclass(frozen=True)
class TrialEnded:
    """Last report of a trial, at its end."""

    result: Result


class TrialFailed(Exception):
    """Error of a trial that did not finish and is to be restarted."""


def run_trial(
    address: ServerAddress | None,
    work: bytes,
    config: Result,
    report: Callable[[Result], None],
    record: FailureRecord,
) -> None:
    """Run the trial that `config` names in a process, and pass its results to `report`.

    The process ends when this call ends. A failure is written to `record`. One that would repeat
    becomes the trial's result, under "failed".

    Args:
        address: Address of the node's fork server, or None.
        work: Pickled TrialTask.
        config: Name of the trial, or its drawn factors.
        report: Function that receives each result.
        record: Failures of the trial so far.

    Raises TrialFailed after any other failure, once the back-off time has passed.
    """
    latest: dict[str, Any] = {}

    def report_and_remember(result: Result) -> None:
        latest.update(result)
        report(result)

    try:
        with contextlib.closing(_fork_agent(address, (work, dict(config)))) as process:
            failure = _relay(process, report_and_remember)
    except ProcessDied as died:
        failure = TrialFailure(f"its process died: {died}")
    if failure is None:
        return
    verdict = record.decide_retry(failure)
    if isinstance(verdict, GiveUp):
        report({**GAVE_UP, **latest, "failed": verdict.reason})
        return
    time.sleep(verdict)
    raise TrialFailed(failure.problem)


def _relay(process: ForkedProcess, report: Callable[[Result], None]) -> TrialFailure | None:
    """Report the results of a trial's process until it ends; return its failure, if any."""
    while not isinstance(message := process.receive(), TrialEnded | TrialFailure):
        report(message.result)
        process.send(None)
    if isinstance(message, TrialFailure):
        return message
    report(message.result)
    return None


def _fork_agent(address: ServerAddress | None, given: tuple[bytes, Result]) -> ForkedProcess:
    """Fork a trial's process from the server at `address`, or from one of this process.

    This process starts a server of its own if there is no `address`, or if that server is dead.
    """
    with contextlib.suppress(ProcessDied):
        if address:
            return ForkedProcess(address, f"{WORK}:main", given)
    global _own_server
    _own_server = _own_server or ForkServer(*MODULES)
    return ForkedProcess(_own_server.get_address(), f"{WORK}:main", given)


_own_server: ForkServer | None = None  # started once, and kept until this process ends
