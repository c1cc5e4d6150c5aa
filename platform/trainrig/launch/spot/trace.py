"""When machines were taken back and came again: a record that can be played once more.

A CSV file, one line an event, in order:

    second,node,event,notice
    41.5,a,lost,30
    95.0,a,back,

`second` counts from the start, `node` is any name, and every node named is there at first.
`notice` is how many seconds before its loss a node was told of it; empty or 0: it was not. JSON
lines with the same four keys do as well.
"""

import csv
import io
import json
import math
import random
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
    """A node that goes or comes."""

    second: float  # since the start
    node: str
    event: str  # LOST or BACK
    notice: float = 0.0  # s before a loss; 0: none


def read(path: str) -> list[Event]:
    """The events of the trace at `path`. Raises DataError, with the line."""
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
        raise DataError(f"{path}: no event in it; a line is such as `41.5,a,lost,30`")
    return events


def write(path: str, events: Iterable[Event]) -> None:
    """Put the trace of `events` at `path`, as CSV."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(FIELDS)
    for each in events:
        lines.writerow([each.second, each.node, each.event, each.notice or ""])
    storage.write(path, text.getvalue().encode())


def list_nodes(events: Iterable[Event]) -> list[str]:
    """The nodes that a trace speaks of, sorted."""
    return sorted({each.node for each in events})


def generate_trace(
    seed: int,
    nodes: Sequence[str],
    seconds: float,
    stays: float,
    away: float,
    notices: Sequence[float],
) -> list[Event]:
    """A trace by chance: each node stays and is away for times that are distributed exponentially.

    `stays`, `away`: their means, in seconds. `notices`: seconds, one of which each loss has.
    """
    dice = random.Random(seed)
    events = []
    for node in nodes:
        at = 0.0
        while True:
            notice = dice.choice(notices)
            at = _add_seconds(at, notice + dice.expovariate(1 / stays))
            if at > seconds:
                break
            events.append(Event(at, node, LOST, notice))
            at = _add_seconds(at, dice.expovariate(1 / away))
            if at > seconds:
                break
            events.append(Event(at, node, BACK))
    return sorted(events, key=lambda each: each.second)


def _add_seconds(at: float, seconds: float) -> float:
    """In hundredths of a second, and at least two of them later."""
    return round(at + seconds + 0.02, 2)


def _iterate_entries(path: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line's number and its entries."""
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
        raise ValueError(f"no `{extra[0]}` in a trace; there are {', '.join(FIELDS)}")
    node = entries.get("node")
    event = entries.get("event")
    if not isinstance(node, str) or not node:
        raise ValueError("`node` names no node")
    if event not in (LOST, BACK):
        raise ValueError(f"`event` is {event!r}; it is {LOST} or {BACK}")
    second = _parse_number(entries, "second")
    notice = _parse_number(entries, "notice") if entries.get("notice") else 0.0
    if notice and event == BACK:
        raise ValueError("a node that comes gives no notice")
    return Event(second, node, event, notice)


def _parse_number(entries: dict[str, Any], key: str) -> float:
    try:
        value = float(entries[key])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"`{key}` is {entries.get(key)!r}, which is no number") from None
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"`{key}` is {value}, which is no number of seconds")
    return value


def _check_follows(events: Sequence[Event]) -> None:
    """Raise ValueError if the newest of `events` cannot come after the others."""
    *earlier, newest = events
    if earlier and newest.second < earlier[-1].second:
        raise ValueError(f"second {newest.second:g} comes after second {earlier[-1].second:g}")
    before = [each for each in earlier if each.node == newest.node]
    if newest.event == (before[-1].event if before else BACK):
        how = "is away already" if newest.event == LOST else "is there already"
        raise ValueError(f"node {newest.node} {how}")
    if before and newest.second - newest.notice < before[-1].second:
        raise ValueError(f"node {newest.node} is told of its loss before it is there")
    if newest.notice > newest.second:
        raise ValueError(f"node {newest.node} is told of its loss before the start")
