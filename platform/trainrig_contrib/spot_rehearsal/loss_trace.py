"""Traces of lost and returned machines, which can be replayed.

A CSV file with one line for each event, in order:

    second,node,event,notice
    41.5,a,lost,30
    95.0,a,back,

`second` counts from the start, `node` is any name, and every named node is there at first. `notice`
is the warning time before a loss in seconds; empty or 0: no warning. JSON lines with the same four
keys are accepted too.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig import storage
from trainrig.errors import DataError

FIELDS = ("second", "node", "event", "notice")
LOST = "lost"
BACK = "back"


@dataclass(frozen=True)
class Event:
    """Loss or return of a node."""

    second: float  # seconds since the start
    node: str
    event: str  # LOST or BACK
    notice: float = 0.0  # seconds before a loss; 0: none


def read(path: str) -> list[Event]:
    """Read the events of the trace at `path`. Raises DataError with the line number."""
    try:
        text = storage.read(path).decode()
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(f"{path}: no such trace") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; a trace is CSV") from None
    events: list[Event] = []
    for number, entries in _iterate_entries(path, text):
        try:
            events.append(_parse_event(entries))
            _check_follows(events)
        except ValueError as problem:
            raise DataError(f"{path}: line {number}: {problem}") from None
    if not events:
        raise DataError(f"{path}: no events; write lines such as `41.5,a,lost,30`")
    return events


def write(path: str, events: Iterable[Event]) -> None:
    """Write the trace of `events` to `path`, as CSV."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(FIELDS)
    for event in events:
        lines.writerow([event.second, event.node, event.event, event.notice or ""])
    storage.write(path, text.getvalue().encode())


def list_nodes(events: Iterable[Event]) -> list[str]:
    """Return the names of all nodes in a trace, sorted."""
    return sorted({event.node for event in events})


def _iterate_entries(path: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line's number and its fields."""
    if text.lstrip().startswith("{"):
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                try:
                    entries = json.loads(line)
                except ValueError:
                    entries = None
                if not isinstance(entries, dict):
                    raise DataError(f"{path}: line {number}: not a JSON object")
                yield number, entries
        return
    lines = csv.DictReader(io.StringIO(text))
    if tuple(lines.fieldnames or ()) != FIELDS:
        raise DataError(f"{path}: line 1: a trace begins with `{','.join(FIELDS)}`")
    for row in lines:
        yield lines.line_num, row


def _parse_event(entries: dict[str, Any]) -> Event:
    if extra := [str(key) for key in entries if key not in FIELDS]:
        raise ValueError(f"unknown field `{extra[0]}`; a trace has {', '.join(FIELDS)}")
    node = entries.get("node")
    event = entries.get("event")
    if not isinstance(node, str) or not node:
        raise ValueError("`node` is empty")
    if event not in (LOST, BACK):
        raise ValueError(f"`event` is {event!r}; write {LOST} or {BACK}")
    second = _parse_number(entries, "second")
    notice = _parse_number(entries, "notice") if entries.get("notice") else 0.0
    if notice and event == BACK:
        raise ValueError("only a lost node can have a notice")
    return Event(second, node, event, notice)


def _parse_number(entries: dict[str, Any], key: str) -> float:
    try:
        value = float(entries[key])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"`{key}` is {entries.get(key)!r}, which is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"`{key}` is {value}, which is not a number of seconds")
    return value


def _check_follows(events: Sequence[Event]) -> None:
    """Raise ValueError if the newest of `events` cannot follow the others."""
    *earlier, newest = events
    if earlier and newest.second < earlier[-1].second:
        raise ValueError(f"second {newest.second:g} comes after second {earlier[-1].second:g}")
    before = [event for event in earlier if event.node == newest.node]
    if newest.event == (before[-1].event if before else BACK):
        how = "is already lost" if newest.event == LOST else "is already there"
        raise ValueError(f"node {newest.node} {how}")
    if before and newest.second - newest.notice < before[-1].second:
        raise ValueError(f"node {newest.node} gets the notice of its loss before it is there")
    if newest.notice > newest.second:
        raise ValueError(f"node {newest.node} gets the notice of its loss before second 0")
