"""Progress of a run: its progress line, and its goodput, from its metrics and events.

The progress line only reads the run folder, so it can follow a run that another process drives.
Goodput is the share of the wall time spent on steps that count. The rest is split into named
parts, which add up to the wall time:

    lost       steps that a later attempt repeated
    detection  from the last step before a failure until it was noticed, an unfinished step included
    restart    from there, or from a move to other nodes, until the first step begins
    stall      steps delayed while the state was copied for a checkpoint; and the final save
    waiting    for nodes, or before a restart (back-off)
    stopped    no driver ran: the run was asked to stop, or its driver died
"""

import dataclasses
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig import storage
from trainrig.processes.append_log import Tail
from trainrig.report.number_formats import format_duration
from trainrig.train.run import metrics
from trainrig.train.run.metrics import METRICS
from trainrig.train.run.run_folder import EVENTS, RunFolder

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
            tokens_per_second=newest["train/tokens_per_second"],
            workers=int(newest["cluster/workers"]),
            restarts=max(0, self._attempts - 1),
            seconds_left=self._estimate_seconds_left(),
            waiting=self._waiting if self._is_waiting(newest) else None,
            mfu=newest.get("train/mfu"),
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


Line = Mapping[str, Any]
ENDS = {"attempt_failed": "failed", "attempt_stopped": "stopped"}


@dataclass(frozen=True)
class Goodput:
    """Seconds of a run by what they were spent on; the module explains the names."""

    productive: float = 0.0
    lost: float = 0.0
    detection: float = 0.0
    restart: float = 0.0
    stall: float = 0.0
    waiting: float = 0.0
    stopped: float = 0.0

    @property
    def wall(self) -> float:
        """Seconds from the first attempt's start to the last one's end."""
        seconds: tuple[float, ...] = dataclasses.astuple(self)
        return sum(seconds)

    @property
    def share(self) -> float:
        """Productive share of the time with a running driver; 0 before the first attempt."""
        driven = self.wall - self.stopped
        return self.productive / driven if driven else 0.0


def measure_goodput(folder: str) -> Goodput:
    """Measure the goodput so far of the run in `folder`."""
    return account_time(RunFolder(folder).read_events(), metrics.read_lines(folder))


def account_time(events: Iterable[Line], lines: Iterable[Line]) -> Goodput:
    """Compute the goodput from the `events` of a run and the metrics `lines` of its updates."""
    events = sorted(events, key=_read_time)
    lines = sorted(lines, key=_read_time)
    newest: dict[int, int] = {}  # newest attempt that made each step
    for line in lines:
        newest[line["step"]] = max(line["attempt"], newest.get(line["step"], 0))
    book = _Book()
    spans = _find_spans(events, lines)
    for before, span in zip([None, *spans], spans, strict=False):
        if before:
            _account_between(book, before, span, events)
        _account_steps(book, span, newest)
    return Goodput(**book.seconds)


class _Book:
    """Sums of seconds by purpose, entered as consecutive intervals."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((field.name for field in dataclasses.fields(Goodput)), 0.0)

    def enter(self, what: str, begin: float, end: float) -> None:
        self.seconds[what] += max(0.0, end - begin)


@dataclass(frozen=True)
class _Span:
    begin: float
    end: float
    how: str  # "failed", "stopped" or "silent" (its driver died, or it still runs)
    lines: Sequence[Line]
    # start of each save, and the seconds that steps waited for it
    stalls: Sequence[tuple[float, float]]


def _read_time(line: Line) -> float:
    return float(line["time"])


def _find_spans(events: Sequence[Line], lines: Sequence[Line]) -> list[_Span]:
    spans: list[_Span] = []
    for start in (event for event in events if event["event"] == "attempt_started"):
        number = start["attempt"]
        own = [event for event in events if event.get("attempt") == number]
        steps = [line for line in lines if line["attempt"] == number]
        ended = next((event for event in own if event["event"] in ENDS), None)
        saves = [event for event in own if event["event"] == "checkpoint"]
        begin = max([_read_time(start), *(span.end for span in spans[-1:])])
        last = _read_time(ended) if ended else max(map(_read_time, [*own, *steps]))
        spans.append(
            _Span(
                begin,
                max(begin, last),
                ENDS[ended["event"]] if ended else "silent",
                steps,
                [(_read_time(save) - save["seconds"], save["stall_seconds"]) for save in saves],
            )
        )
    return spans


def _account_steps(book: _Book, span: _Span, newest: Mapping[int, int]) -> None:
    cursor = span.begin
    first = True
    for line in span.lines:
        end = min(max(_read_time(line), cursor), span.end)
        began = min(max(end - metrics.wall_seconds(line), cursor), end)
        book.enter("restart" if first else "stall", cursor, began)
        held_up = sum(seconds for at, seconds in span.stalls if began <= at < end)
        working = max(began, end - held_up)
        book.enter(
            "productive" if newest[line["step"]] == line["attempt"] else "lost", began, working
        )
        book.enter("stall", working, end)
        cursor = end
        first = False
    after_steps = "stall" if span.how == "stopped" else "detection"
    book.enter("restart" if first else after_steps, cursor, span.end)


def _account_between(book: _Book, before: _Span, span: _Span, events: Sequence[Line]) -> None:
    between = [event for event in events if before.end <= _read_time(event) <= span.begin]
    if before.how == "silent" or any(event["event"] == "run_stopped" for event in between):
        book.enter("stopped", before.end, span.begin)
        return
    waiting = sum(event["seconds"] for event in between if event["event"] == "back_off")
    for event in between:
        if event["event"] == "waiting_for_nodes":
            waiting += span.begin - _read_time(event)
    waited = min(span.begin, before.end + waiting)
    book.enter("waiting", before.end, waited)
    book.enter("restart", waited, span.begin)
