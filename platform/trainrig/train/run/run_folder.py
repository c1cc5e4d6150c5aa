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
from collections.abc import Iterator
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

    def events(self) -> Iterator[dict[str, Any]]:
        """All events so far; a line still being written, or torn by a full disk, is left out."""
        for line in append_log.lines(self._events):
            try:
                yield json.loads(line)
            except ValueError:
                append_log.passed_over(self._events, line)

    @property
    def _events(self) -> str:
        return storage.join(self.path, EVENTS)

    def attempts(self) -> list[TrainingAttempt]:
        """The attempts made so far, in order."""
        found = [
            json.loads(storage.read(path))
            for path in storage.list_files(storage.join(self.path, "attempts"), ".json")
        ]
        return sorted(
            (TrainingAttempt(entry["number"], entry["resumed_step"]) for entry in found),
            key=lambda attempt: attempt.number,
        )

    def is_gone(self, attempt: TrainingAttempt) -> bool:
        """Whether the record of `attempt` was removed, and so, surely, the folder: nothing that is
        written there now will be found again. False where storage does not answer."""
        path = storage.join(self.path, "attempts", f"{attempt.number:04d}.json")
        try:
            with s3_retries.briefly():
                return not storage.exists(path)
        except (OSError, ClusterError):
            return False

    def take_attempt(self, resumed_step: int) -> TrainingAttempt:
        """The next attempt's number, ours alone, on record as resuming from `resumed_step`."""
        while True:
            number = max((attempt.number for attempt in self.attempts()), default=0) + 1
            entry = {"number": number, "resumed_step": resumed_step, "owner": secrets.token_hex(8)}
            path = storage.join(self.path, "attempts", f"{number:04d}.json")
            if storage.create(path, json.dumps(entry).encode()):
                return TrainingAttempt(number, resumed_step)
