"""A run's folder: its event log, and the right to write checkpoints.

`events.jsonl` has starts, failures, restarts and the end, with times. `attempts/0001.json` and so
on are created one after another, exclusively, each with the step that it resumes from. A checkpoint
of an earlier attempt counts only up to that step, so a worker that outlives its attempt has no
effect. This needs no clocks and no leases.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig import storage
from trainrig.errors import ClusterError
from trainrig.processes import append_log

EVENTS = "events.jsonl"
PLAN = "plan.json"  # predicted loss, if the run follows a plan
REPORT = "report.html"


@dataclass(frozen=True)
class TrainingAttempt:
    """One attempt at the run by one worker group, numbered from 1."""

    number: int
    resumed_step: int
    # Set if this is not an attempt but the record of a roll-back to `resumed_step` that skips the
    # data steps [first, second).
    skip: tuple[int, int] | None = None


@dataclass(frozen=True)
class RunFolder:
    """Folder of a run at `path`, on disk or in a bucket."""

    path: str

    @property
    def checkpoints(self) -> str:
        """Path of the folder with the checkpoints."""
        return storage.join(self.path, "checkpoints")

    def record(self, event: str, **details: Any) -> None:
        """Append an event with the time, process id and host."""
        line = {
            "event": event,
            "time": round(time.time(), 3),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            **details,
        }
        append_log.append_line(self._events, (json.dumps(line) + "\n").encode())

    def read_events(self) -> Iterator[dict[str, Any]]:
        """Yield all events so far, without lines that are incomplete.

        A line may be incomplete because it is still being written, or was cut off by a full disk.
        """
        for line in append_log.read_lines(self._events):
            try:
                yield json.loads(line)
            except ValueError:
                append_log.warn_torn_line(self._events, line)

    @property
    def _events(self) -> str:
        return storage.join(self.path, EVENTS)

    def read_attempts(self) -> list[TrainingAttempt]:
        """Return the attempts made so far, in order."""
        paths = storage.list_files(storage.join(self.path, "attempts"), ".json")
        found = [json.loads(data) for data in storage.read_files(paths)]
        return sorted(
            (
                TrainingAttempt(
                    entry["number"], entry["resumed_step"], _read_pair(entry.get("skip"))
                )
                for entry in found
            ),
            key=lambda attempt: attempt.number,
        )

    @staticmethod
    def counts(step: int, number: int, attempts: Sequence[TrainingAttempt]) -> bool:
        """Return whether the checkpoint of `step` by attempt `number` counts.

        It does if none of the later `attempts` resumed from an earlier step. So checkpoints of a
        worker that outlived its attempt are ignored (fencing), as are those that the run rolled
        back from.
        """
        return not any(
            attempt.number > number and attempt.resumed_step < step for attempt in attempts
        )

    def read_identity(self) -> str:
        """Return the run's random identity, which is drawn with its first attempt.

        It differs between any two runs, also in the same folder. Raises FileNotFoundError before
        the first attempt.
        """
        first = storage.read(storage.join(self.path, "attempts", "0001.json"))
        return str(json.loads(first)["owner"])

    def is_rolled_back(self, attempt: TrainingAttempt) -> bool:
        """Return whether the run rolled back to before a spike after `attempt`."""
        return any(later.skip and later.number > attempt.number for later in self.read_attempts())

    def is_gone(self, attempt: TrainingAttempt) -> bool:
        """Return whether the record of `attempt` was removed, and so probably the whole folder.

        What is written there afterwards will not be found again. Returns False if storage does not
        respond.
        """
        path = storage.join(self.path, "attempts", f"{attempt.number:04d}.json")
        try:
            with storage.briefly():
                return not storage.exists(path)
        except (OSError, ClusterError):
            return False

    def take_attempt(
        self, resumed_step: int, skip: tuple[int, int] | None = None
    ) -> TrainingAttempt:
        """Take the next attempt number, exclusively, and record its `resumed_step`.

        With `skip`, the attempt stands for a roll-back to that step. The single file, created
        atomically, makes every reader ignore the checkpoints after that step, and skip the data.
        """
        while True:
            number = max((attempt.number for attempt in self.read_attempts()), default=0) + 1
            entry = {"number": number, "resumed_step": resumed_step, "owner": secrets.token_hex(8)}
            entry |= {"skip": skip} if skip else {}
            path = storage.join(self.path, "attempts", f"{number:04d}.json")
            if storage.create(path, json.dumps(entry).encode()):
                return TrainingAttempt(number, resumed_step, skip)


def _read_pair(entry: list[int] | None) -> tuple[int, int] | None:
    return (entry[0], entry[1]) if entry else None
