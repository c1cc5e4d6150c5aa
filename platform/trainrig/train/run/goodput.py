"""Goodput: where the wall time of a run went, computed from its events and metrics.

Goodput is the share of the wall time spent on steps that count. The rest is split into named parts,
which add up to the wall time:

    lost       steps that a later attempt repeated
    detection  from the last step before a failure until it was noticed, an unfinished step included
    restart    from there, or from a move to other nodes, until the first step begins
    stall      steps delayed while the state was copied for a checkpoint; and the final save
    waiting    for nodes, or before a restart (back-off)
    stopped    no driver ran: the run was asked to stop, or its driver died
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
