"""Sends the metrics of a run to the sinks that its run file names, from `metrics.jsonl`.

The run's driver reads what the ranks have written, so no rank ever waits for a sink. A sink that
fails does not affect the run: it is opened again at the next try.

Each step is sent once, in order, and only when it is final. A step is held back while a spike may
still undo it: while a spike that began near it is open, and for the few steps by which a spike may
begin before its first outlier. Steps repeated after a kill have the same values and are not sent
again. Nor are steps that were sent before a roll-back that reached further back.
"""

import json
import logging
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from trainrig import storage
from trainrig.processes.append_log import Tail
from trainrig.storage import s3_retries
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import EVENTS, RunFolder
from trainrig.train.sinks import ExportedRun, Sink, SinkWriter
from trainrig.train.spikes import WIDER, Spikes

log = logging.getLogger(__name__)
Line = Mapping[str, Any]

LOOK_SECONDS = 5.0
GIVE_UP_SECONDS = 60.0  # s after the end of the run to wait for sinks that do not respond
NOT_FIGURES = {"step", "attempt", "time"}


class SettledSteps:
    """Reads a run's metrics and events, and returns each step once no roll-back can undo it."""

    def __init__(self, spikes: Spikes | None) -> None:
        # Data steps that a spike may reach back from its first outlier (at the second roll-back),
        # and forward until it has ended.
        self._back = spikes.margin * WIDER if spikes else 0
        self._on = spikes.longest + spikes.margin if spikes else 0
        self._lines: dict[int, dict[str, Any]] = {}  # lines not returned yet, by step
        self._attempt = 0  # attempt of the newest line
        self._newest = -1  # data step of the newest line
        self._outliers: list[int] = []  # data steps

    def hear(self, line: Line) -> None:
        """Record a line of metrics, or an event."""
        if line.get("event") == "step_skipped":
            self._outliers.append(line["data_step"])
        if "event" in line or line["attempt"] < self._attempt:
            return
        step = line["step"]
        # the new attempt repeats what comes after its first step
        if line["attempt"] > self._attempt:
            self._attempt = line["attempt"]
            self._lines = {at: held for at, held in self._lines.items() if at < step}
        if "train/loss" in line:
            self._newest = line["train/data_step"]
            self._lines[step] = dict(line)
        elif step in self._lines:
            self._lines[step] |= line

    def take(self, over: bool = False) -> list[dict[str, Any]]:
        """Return the steps that became final since the last call, in order.

        If the run is `over`, all remaining steps are final.
        """
        given = [at for at in sorted(self._lines) if over or self._is_settled(self._lines[at])]
        return [self._lines.pop(at) for at in given]

    def _is_settled(self, line: Line) -> bool:
        data_step = line["train/data_step"]
        # The held-out loss of a step is written after its line and before the next.
        if data_step >= self._newest - self._back:
            return False
        return not any(
            outlier - self._back <= data_step and self._newest <= outlier + self._on
            for outlier in self._outliers
        )


class Exporter:
    """Sends the metrics of the run in `folder` to `sinks`. Each driver has one."""

    def __init__(self, folder: str, sinks: Sequence[Sink], spikes: Spikes | None) -> None:
        self._folder = RunFolder(folder)
        self._sinks = tuple(sinks)
        self._spikes = spikes
        self._metrics = Tail(storage.join(folder, metrics.METRICS))
        self._events = Tail(storage.join(folder, EVENTS))
        self._steps = SettledSteps(spikes)
        self._writers: dict[int, SinkWriter] = {}  # keys: index in `sinks`
        self._waiting: dict[int, list[Line]] = {at: [] for at in range(len(self._sinks))}
        self._reported: set[int] = set()

    def look(self, over: bool = False) -> bool:
        """Send the new lines since the last call, or all if the run is `over`.

        Returns whether nothing is left to send.
        """
        live = self._read()
        settled = self._steps.take(over)
        for at in range(len(self._sinks)):
            self._waiting[at] += settled
            self._send(at, live)
        return not any(self._waiting.values())

    def close(self) -> None:
        """Close every sink."""
        for at, writer in self._writers.items():
            try:
                writer.close()  # a third-party client may raise anything
            except Exception as problem:  # whatever a stranger's client may raise
                self._tell(at, problem)
        self._writers = {}

    def _read(self) -> Line | None:
        """Read the new lines and events; return the newest line of an update, if any."""
        newest = None
        # Metrics are read first: an outlier's event is written before the lines after it.
        for tail in (self._metrics, self._events):
            for raw in tail.read_new_lines():
                try:
                    line = json.loads(raw)
                except ValueError:  # a torn line; other readers warn of it
                    continue
                self._steps.hear(line)
                newest = line if "train/loss" in line else newest
        return newest

    def _send(self, at: int, live: Line | None) -> None:
        waiting = self._waiting[at]
        if not waiting and live is None:
            return
        try:
            writer = self._writers.get(at) or self._open(at)
            if writer.live:
                waiting.clear()
                if live is not None:
                    _write(writer, live)
            while waiting:
                if waiting[0]["step"] > writer.sent:
                    _write(writer, waiting[0])
                waiting.pop(0)
        except Exception as problem:  # a third-party client may raise anything
            self._writers.pop(at, None)
            self._tell(at, problem)

    def _open(self, at: int) -> SinkWriter:
        folder = self._folder.path
        run = ExportedRun(
            folder=folder,
            id=self._folder.read_identity(),
            name=PurePosixPath(folder).name,
            settings=tomllib.loads(storage.read(storage.join(folder, "run.toml")).decode()),
            describe=metrics.describe,
        )
        self._writers[at] = writer = self._sinks[at].open(run)
        self._reported.discard(at)
        return writer

    def _tell(self, at: int, problem: Exception) -> None:
        if at not in self._reported:
            kind = self._sinks[at].kind
            log.warning(
                "%s: %s: some metrics are not sent yet: %s", self._folder.path, kind, problem
            )
        self._reported.add(at)


def _write(writer: SinkWriter, line: Line) -> None:
    figures = {
        name: float(value)
        for name, value in line.items()
        if name not in NOT_FIGURES and value is not None
    }
    writer.write(line["step"], line["time"], figures)


@contextmanager
def export_figures(folder: str, sinks: Sequence[Sink], spikes: Spikes | None) -> Iterator[None]:
    """Send the metrics of the run in `folder` to `sinks` while the block, which drives it, runs."""
    if not sinks:
        yield
        return
    exporter = Exporter(folder, sinks, spikes)
    over = threading.Event()

    def look(last: bool) -> bool:
        try:
            with s3_retries.briefly():
                return exporter.look(last)
        except Exception as problem:  # the run's own storage may fail; the next try follows soon
            log.debug("%s: not sent: %s", folder, problem)
            return False

    def follow() -> None:
        while not over.wait(LOOK_SECONDS):
            look(last=False)
        end = time.monotonic() + GIVE_UP_SECONDS
        while not look(last=True) and time.monotonic() < end:
            time.sleep(1)
        exporter.close()

    thread = threading.Thread(target=follow, name="export", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(2 * GIVE_UP_SECONDS)
