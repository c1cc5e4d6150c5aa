"""Computes where the time of a run went, from its event log.

Goodput is the share of the wall time in which steps were taken that count. All of the rest has a
name, and the names add up to the wall time:

    lost       steps that a later attempt took again
    detection  from the last step before a fault until the fault was seen, half a step included
    restart    from there, or from a move to other nodes, until the first step begins
    stall      steps held up while the state was copied for a checkpoint; the last save of all
    waiting    for nodes, and backing off
    stopped    nobody drove the run: it was asked to stop, or its driver died
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

Line = Mapping[str, Any]
ENDS = {"attempt_failed": "failed", "attempt_stopped": "stopped"}


@dataclass(frozen=True)
class Goodput:
    """Seconds of a run by what they were spent on. The module says what the names mean."""

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
        """Of the time in which a driver was running, that in which it got on; 0 before any."""
        driven = self.wall - self.stopped
        return self.productive / driven if driven else 0.0


def measure_goodput(folder: str) -> Goodput:
    """Of the run in `folder`, so far."""
    return account_time(RunFolder(folder).read_events(), metrics.read_lines(folder))


def account_time(events: Iterable[Line], lines: Iterable[Line]) -> Goodput:
    """`events` of a run folder and the `lines` of its updates, in seconds by what they went to."""
    events = sorted(events, key=_read_time)
    lines = sorted(lines, key=_read_time)
    newest: dict[int, int] = {}  # attempt whose update counts, by step
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
    """Each stretch of time is entered once, and they follow each other."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((field.name for field in dataclasses.fields(Goodput)), 0.0)

    def enter(self, what: str, begin: float, end: float) -> None:
        self.seconds[what] += max(0.0, end - begin)


@dataclass(frozen=True)
class _Span:
    begin: float
    end: float
    how: str  # "failed", "stopped" or "silent": its driver died, or it still goes on
    lines: Sequence[Line]
    stalls: Sequence[tuple[float, float]]  # when each save began, and seconds that steps waited


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
    cursor, first = span.begin, True
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
        cursor, first = end, False
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
