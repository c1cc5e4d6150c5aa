"""The progress line of a run, from its metrics and events.

It only reads the run folder, so it can follow a run that another process drives.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainrig import storage
from trainrig.processes.append_log import Tail
from trainrig.report import format_duration
from trainrig.train.run.metrics import METRICS
from trainrig.train.run.run_folder import EVENTS

# metrics that not every update has
SAMPLED = {"time/data", "time/communication", "memory/peak_gib"}
LEAST_WAIT = 0.01  # smallest share of a step that is shown
RECENT = 50  # updates over which the pace is measured for the remaining time


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a run."""

    step: int  # updates made
    loss: float | None  # None: not finite
    held_out: float | None  # last loss over all sources; None: not measured yet
    tokens_per_second: float
    workers: int
    restarts: int
    seconds_left: float | None  # None until the pace of the attempt is known
    waiting: str | None  # reason for waiting; None while the run trains
    mfu: float | None = None  # share of the devices' peak FLOPs; None: unknown
    # share of the step spent waiting for data, on rank 0, as last measured
    data_wait: float | None = None
    # share spent waiting for other ranks, on rank 0, as last measured
    ranks_wait: float | None = None
    peak_gib: float | None = None  # peak memory of rank 0, as last measured

    def describe(self) -> str:
        """Return everything but the step as text."""
        parts = [f"loss {'NaN' if self.loss is None else f'{self.loss:.3f}'}"]
        if self.held_out is not None:
            parts.append(f"held-out {self.held_out:.3f}")
        parts += [self._describe_speed(), _format_count(self.workers, "worker")]
        if self.restarts:
            parts.append(_format_count(self.restarts, "restart"))
        if self.waiting:
            parts.append(self.waiting)
        elif self.seconds_left is not None:
            parts.append(f"{format_duration(self.seconds_left)} left".replace("\u00a0", " "))
        # Last, as a narrow terminal cuts off what is there.
        return ", ".join([*parts, *self._describe_limits()])

    def _describe_speed(self) -> str:
        """Return the throughput as text, in total and per worker, with MFU if known."""
        speed = f"{self.tokens_per_second:,.0f} tokens/s"
        if self.workers > 1:
            speed += f" ({self.tokens_per_second / self.workers:,.0f} each)"
        if self.mfu is not None:
            speed += f" at {self.mfu:.0%} MFU"
        return speed

    def _describe_limits(self) -> Iterator[str]:
        """Yield the waiting shares and the peak memory as text."""
        waits = [("data", self.data_wait), ("ranks", self.ranks_wait)]
        told = [f"{share:.0%} for {name}" for name, share in waits if share and share >= LEAST_WAIT]
        if told:
            yield f"waits {' and '.join(told)}"
        if self.peak_gib is not None:
            yield f"{self.peak_gib:.3g} GiB"


def _format_count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class ProgressFollower:
    """Reader of the progress of a run of `steps` steps."""

    def __init__(self, folder: str, steps: int) -> None:
        self._steps = steps
        self._metrics = Tail(storage.join(folder, METRICS))
        self._events = Tail(storage.join(folder, EVENTS))
        # newest updates, all of one attempt
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._held_out: float | None = None
        self._sampled: dict[str, float] = {}  # last values of the metrics in SAMPLED, by name
        self._attempts = 0  # number of the newest attempt
        self._waiting = ""  # reason for waiting
        self._awaited = 0  # the attempt whose first update ends the wait

    def look(self) -> TrainingProgress | None:
        """Read what was written since the last call; return None before the first update."""
        for event in _parse_lines(self._events.read_new_lines()):
            self._hear(event)
        for line in _parse_lines(self._metrics.read_new_lines()):
            if "train/loss" in line:
                self._count(line)
            elif "eval/loss" in line:
                self._held_out = line["eval/loss"]
        if not self._recent:
            return None
        newest = self._recent[-1]
        return TrainingProgress(
            step=newest["step"],
            loss=newest["train/loss"],
            held_out=self._held_out,
            tokens_per_second=newest["speed/tokens_per_second"],
            workers=int(newest["cluster/workers"]),
            restarts=max(0, self._attempts - 1),
            seconds_left=self._estimate_seconds_left(),
            waiting=self._waiting if self._is_waiting(newest) else None,
            mfu=newest.get("speed/mfu"),
            data_wait=self._sampled.get("time/data"),
            ranks_wait=self._sampled.get("time/communication"),
            peak_gib=self._sampled.get("memory/peak_gib"),
        )

    def _is_waiting(self, newest: Mapping[str, Any]) -> bool:
        return bool(newest["step"] < self._steps and newest["attempt"] < self._awaited)

    def _count(self, update: dict[str, Any]) -> None:
        if self._recent and update["attempt"] < self._recent[-1]["attempt"]:
            return  # written by a worker that outlived its attempt
        if self._recent and update["attempt"] > self._recent[-1]["attempt"]:
            self._recent.clear()
        self._recent.append(update)
        for name in SAMPLED & update.keys():
            self._sampled[name] = update[name]

    def _hear(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "attempt_started":
            self._attempts = event["attempt"]
            self._waiting = f"starting {_format_count(event['workers'], 'worker')}"
            self._awaited = self._attempts
        elif event["event"] in WAITING:
            self._waiting = WAITING[event["event"]]
            self._awaited = self._attempts + 1

    def _estimate_seconds_left(self) -> float | None:
        first = self._recent[0]
        last = self._recent[-1]
        if last["step"] <= first["step"]:
            return None
        pace = (last["time"] - first["time"]) / (last["step"] - first["step"])
        return float(pace * (self._steps - last["step"]))


WAITING = {
    "attempt_failed": "workers failed",
    "attempt_stopped": "workers stopped",
    "back_off": "waiting before the next attempt",
    "waiting_for_nodes": "waiting for nodes",
}


def _parse_lines(lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:  # a torn line; other readers warn of it
            continue
