"""Faults that the quickstart injects: a worker killed during training, and how page faults ended.

The outcome of each fault that was injected into a page is read from the curated output.
"""

import contextlib
import os
import socket
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trainrig.corpus.curate import DROPPED, KEPT, read_rows
from trainrig.corpus.dedup.dedup_decisions import EXACT, NEAR
from trainrig.processes.process_identity import descends_from, kill_if
from trainrig.quickstart.site.site_plan import Plant
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

KILLED = "killed_by_quickstart"  # Name of the event.
LOOK_SECONDS = 0.25


@contextlib.contextmanager
def kill_one_worker(folder: str, after_step: int) -> Iterator[None]:
    """Kill the last rank once, after step `after_step`, while the block trains in `folder`.

    A run in which an earlier call killed a worker is not disturbed again. Neither is a run that
    takes no step in the block: its recorded process ids may belong to other processes by now.
    """
    before = len(list(metrics.read_lines(folder)))
    over = threading.Event()
    killer = threading.Thread(
        target=_kill, args=(RunFolder(folder), after_step, before, over), daemon=True
    )
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()


def _kill(folder: RunFolder, after_step: int, before: int, over: threading.Event) -> None:
    while not over.wait(LOOK_SECONDS):
        lines = list(metrics.read_lines(folder.path))[before:]
        if not lines or lines[-1]["step"] < after_step:
            continue
        events = list(folder.read_events())
        if any(event["event"] == KILLED for event in events):
            return
        started = [e for e in events if e["event"] == "worker_started"]
        target = max(
            (e for e in started if e["attempt"] == lines[-1]["attempt"]), key=lambda e: e["rank"]
        )
        # A process id is valid on its own machine only.
        assert target["host"] == socket.gethostname(), "the quickstart must run on one machine"
        # The process id may be reused by now, or come from another writer of this folder.
        if kill_if(target["pid"], lambda pid: descends_from(pid, os.getpid())):
            folder.record(
                KILLED,
                attempt=target["attempt"],
                step=lines[-1]["step"],
                rank=target["rank"],
                target=target["pid"],
            )
        return


PlantedOutcome = Literal["caught", "missed", "gone"]
DUPLICATES = ("exact_duplicate", "near_duplicate")


@dataclass(frozen=True)
class CuratedRow:
    """The text of a curated document and the rule that dropped it."""

    text: str
    dropped_by: str | None


def find_outcomes(plants: Sequence[Plant], documents: str) -> dict[Plant, PlantedOutcome]:
    """Return the outcome of each injected fault in the curated folder `documents`.

    A copy is caught if it or its original was dropped as a duplicate, and gone if one of them was
    dropped for another reason. A foreign page is caught if the language rule dropped it. Personal
    data are caught if their value appears nowhere in their page, kept or dropped.
    """
    columns = ["url", "text", "dropped_by"]
    rows = {
        row["url"]: CuratedRow(row["text"], row["dropped_by"])
        for folder in (KEPT, DROPPED)
        for row in read_rows(documents, folder, columns)
    }
    return {plant: _find_outcome(plant, rows) for plant in plants}


def _find_outcome(plant: Plant, rows: Mapping[str, CuratedRow]) -> PlantedOutcome:
    row = rows.get(plant.url)
    if row is None:
        return "gone"
    if plant.kind == "personal_data":
        assert plant.value is not None
        return "missed" if plant.value in row.text else "caught"
    if plant.kind == "foreign_language":
        if row.dropped_by is None:
            return "missed"
        return "caught" if row.dropped_by.startswith("Language.") else "gone"
    original = rows.get(plant.original_url or "")
    reasons = [row.dropped_by, original.dropped_by if original else "absent"]
    if any(reason in (EXACT, NEAR) for reason in reasons):
        return "caught"
    return "missed" if reasons == [None, None] else "gone"


def tally(
    found: Mapping[Plant, PlantedOutcome], wanted: Iterable[str]
) -> dict[PlantedOutcome, int]:
    """Return the number of faults of the kinds `wanted` with each outcome."""
    counts: dict[PlantedOutcome, int] = {"caught": 0, "missed": 0, "gone": 0}
    kinds = set(wanted)
    for plant, outcome in found.items():
        if plant.kind in kinds:
            counts[outcome] += 1
    return counts


def count_by_kind(found: Mapping[Plant, PlantedOutcome]) -> dict[str, dict[PlantedOutcome, int]]:
    """Return the number of faults with each outcome, by kind.

    Personal data are counted by their type, such as EMAIL.
    """
    counts: defaultdict[str, dict[PlantedOutcome, int]] = defaultdict(
        lambda: {"caught": 0, "missed": 0, "gone": 0}
    )
    for plant, outcome in found.items():
        counts[plant.what or plant.kind][outcome] += 1
    return dict(counts)
