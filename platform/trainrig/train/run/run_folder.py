"""A run's folder: what happened in it, and who may write to it.

`events.jsonl` holds starts, failures, restarts and the end, with times. `attempts/0001.json` and so
on are taken one after another by exclusive create, each with the step it resumes from: a checkpoint
of an earlier attempt counts only up to there, so a worker that outlives its attempt is never
believed. No clocks, no leases.
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
from trainrig.storage import s3_retries

EVENTS = "events.jsonl"
PLAN = "plan.json"  # what was predicted of the run, where it follows a plan


@dataclass(frozen=True)
class TrainingAttempt:
    """One try at the run by one group of workers, numbered from 1."""

    number: int
    resumed_step: int
    # It was no try at all, but a record that the run goes back to `resumed_step` and past this data
    # (from, up to, without).
    skip: tuple[int, int] | None = None


@dataclass(frozen=True)
class RunFolder:
    """The folder at `path`."""

    path: str

    @property
    def checkpoints(self) -> str:
        """Where the checkpoints lie."""
        return storage.join(self.path, "checkpoints")

    def record(self, event: str, **details: Any) -> None:
        """Append one event with the time, and the process and host that saw it."""
        line = {
            "event": event,
            "time": round(time.time(), 3),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            **details,
        }
        append_log.append_line(self._events, (json.dumps(line) + "\n").encode())

    def read_events(self) -> Iterator[dict[str, Any]]:
        """All events so far; a line still being written, or torn by a full disk, is left out."""
        for line in append_log.read_lines(self._events):
            try:
                yield json.loads(line)
            except ValueError:
                append_log.warn_torn_line(self._events, line)

    @property
    def _events(self) -> str:
        return storage.join(self.path, EVENTS)

    def read_attempts(self) -> list[TrainingAttempt]:
        """The attempts made so far, in order."""
        found = [
            json.loads(storage.read(path))
            for path in storage.list_files(storage.join(self.path, "attempts"), ".json")
        ]
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
        """Whether what attempt `number` left of `step` counts: none of `attempts` after it resumed
        from before. So what an outlived worker leaves behind its successors' backs is ignored
        (fencing), and so is what they went back from."""
        return not any(each.number > number and each.resumed_step < step for each in attempts)

    def read_identity(self) -> str:
        """What tells this run from any other, in this folder or elsewhere: drawn with its first
        attempt. Raises FileNotFoundError before."""
        first = storage.read(storage.join(self.path, "attempts", "0001.json"))
        return str(json.loads(first)["owner"])

    def has_rolled_back(self, attempt: TrainingAttempt) -> bool:
        """Whether `attempt` ended for the run to go on from before a spike."""
        return any(each.skip and each.number > attempt.number for each in self.read_attempts())

    def is_gone(self, attempt: TrainingAttempt) -> bool:
        """Whether the record of `attempt` was removed, and so, surely, the folder: nothing that is
        written there now will be found again. False where storage does not answer."""
        path = storage.join(self.path, "attempts", f"{attempt.number:04d}.json")
        try:
            with s3_retries.briefly():
                return not storage.exists(path)
        except (OSError, ClusterError):
            return False

    def take_attempt(
        self, resumed_step: int, skip: tuple[int, int] | None = None
    ) -> TrainingAttempt:
        """The next attempt's number, ours alone, on record as resuming from `resumed_step`.

        `skip`: it stands for a rollback to there, past this data. So one file, created at once or
        not at all, has every reader ignore the checkpoints after that step, and skip the data.
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
