"""Sends the metrics of a run to the sinks that its run file names, from `metrics.jsonl`.

The run's driver reads what the ranks have written, so no rank ever waits for a sink. A sink that
fails does not affect the run: it is opened again at the next try.

Each step is sent once, in order, and only when it is final. A step is held back while the
roll-back after a spike of the loss may still undo it: until a spike that began near it has ended,
and for the few steps by which a spike may begin before its first outlier. Steps repeated after a
kill have the same values and are not sent again. A third roll-back to the same place may reach
steps that were already sent; these are not sent again either.

A *data step* counts the global batches of the data order, also those that a roll-back skipped; a
*step* counts the updates.
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
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import EVENTS, REPORT, RunFolder
from trainrig.train.sinks import ExportedRun, Sink, SinkWriter
from trainrig.train.spikes import WIDER, Spikes

log = logging.getLogger(__name__)
Line = Mapping[str, Any]

LOOK_SECONDS = 5.0
GIVE_UP_SECONDS = 60.0  # s after the end of the run to wait for sinks that do not respond
NOT_FIGURES = {"step", "attempt", "time"}  # keys of a line that are no metrics


class SettledSteps:
    """Reads a run's metrics and events, and returns each step once no roll-back can undo it."""

    def __init__(self, spikes: Spikes | None) -> None:
        # Most data steps from the begin of a spike to its first outlier, up to the second roll-back
        # to the same place; and from an outlier to the end of its spike.
        self._back = spikes.margin * WIDER if spikes else 0
        self._ahead = spikes.longest + spikes.margin if spikes else 0
        self._lines: dict[int, dict[str, Any]] = {}  # lines not returned yet, by step
        self._attempt = 0  # attempt of the newest line
        self._newest = -1  # data step of the newest line
        self._outliers: list[int] = []  # data steps

    def record(self, line: Line) -> None:
        """Record a line of metrics, or an event."""
        if line.get("event") == "step_skipped":
            self._outliers.append(line["data_step"])
        if "event" in line or line["attempt"] < self._attempt:
            return
        step = line["step"]
        # a new attempt repeats all steps from its first line's on, this step included
        if line["attempt"] > self._attempt:
            self._attempt = line["attempt"]
            self._lines = {at: held for at, held in self._lines.items() if at < step}
        if "train/loss" in line:
            self._newest = line["train/data_step"]
            self._lines[step] = dict(line)
        elif step in self._lines:
            self._lines[step] |= line

    def take_final(self, over: bool = False) -> list[dict[str, Any]]:
        """Return the steps that became final since the last call, in order.

        If the run is `over`, all remaining steps are final.
        """
        given = [at for at in sorted(self._lines) if over or self._is_settled(self._lines[at])]
        return [self._lines.pop(at) for at in given]

    def _is_settled(self, line: Line) -> bool:
        data_step = line["train/data_step"]
        # The newest step is never final: its held-out loss may still follow, in a separate line.
        if data_step >= self._newest - self._back:
            return False
        return not any(
            outlier - self._back <= data_step and self._newest <= outlier + self._ahead
            for outlier in self._outliers
        )


class Exporter:
    """Sends the metrics of the run in `folder` to `sinks`. Each driver has one."""

    def __init__(self, folder: str, sinks: Sequence[Sink], spikes: Spikes | None) -> None:
        self._folder = RunFolder(folder)
        self._sinks = tuple(sinks)
        self._metrics = Tail(storage.join(folder, metrics.METRICS))
        self._events = Tail(storage.join(folder, EVENTS))
        self._steps = SettledSteps(spikes)
        self._writers: dict[int, SinkWriter] = {}  # keys: index in `sinks`
        self._waiting: dict[int, list[Line]] = {at: [] for at in range(len(self._sinks))}
        self._reported: set[int] = set()

    def send_new(self, over: bool = False) -> bool:
        """Send the steps that became final since the last call, or all if the run is `over`.

        Live sinks get the newest step instead, even if it is not final.

        Returns whether nothing is left to send.
        """
        live = self._read()
        settled = self._steps.take_final(over)
        for at in range(len(self._sinks)):
            self._waiting[at] += settled
            self._send(at, live)
        return not any(self._waiting.values())

    def close(self) -> None:
        """Attach the run's report, if there is one, and close every sink."""
        report = self._read_report()
        for at, writer in self._writers.items():
            try:
                if report:
                    writer.attach(REPORT, report)
            except Exception as problem:  # a third-party client may raise anything
                kind = self._sinks[at].kind
                log.warning("%s: %s: no report attached: %s", self._folder.path, kind, problem)
            try:
                writer.close()
            except Exception as problem:  # a third-party client may raise anything
                self._warn(at, problem)
        self._writers = {}

    def _read_report(self) -> str | None:
        path = storage.join(self._folder.path, REPORT)
        return storage.read(path).decode() if storage.exists(path) else None

    def _read(self) -> Line | None:
        """Record the new lines and events; return the newest line with a training loss, if any."""
        newest = None
        # Metrics are read first. An outlier's event is written before the lines after it, so no
        # line is recorded whose earlier outliers are not.
        for tail in (self._metrics, self._events):
            for raw in tail.read_new_lines():
                try:
                    line = json.loads(raw)
                except ValueError:  # a torn line; other readers warn of it
                    continue
                self._steps.record(line)
                newest = line if "train/loss" in line else newest
        return newest

    def _send(self, at: int, live: Line | None) -> None:
        waiting = self._waiting[at]
        if not waiting and live is None:
            return
        try:
            writer = self._writers.get(at) or self._open(at)
            if writer.live:  # a gauge, which shows the newest step only
                waiting.clear()
                if live is not None:
                    _write(writer, live)
            while waiting:
                if waiting[0]["step"] > writer.sent:
                    _write(writer, waiting[0])
                waiting.pop(0)
        except Exception as problem:  # a third-party client may raise anything
            self._writers.pop(at, None)
            self._warn(at, problem)

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

    def _warn(self, at: int, problem: Exception) -> None:
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
    """Send the metrics of the run in `folder` to `sinks` while the block runs, which drives it."""
    if not sinks:
        yield
        return
    exporter = Exporter(folder, sinks, spikes)
    over = threading.Event()

    def send(last: bool) -> bool:
        try:
            with storage.briefly():
                return exporter.send_new(last)
        except Exception as problem:  # the run's own storage may fail; the next try follows soon
            log.debug("%s: not sent: %s", folder, problem)
            return False

    def follow() -> None:
        while not over.wait(LOOK_SECONDS):
            send(last=False)
        end = time.monotonic() + GIVE_UP_SECONDS
        while not send(last=True) and time.monotonic() < end:
            time.sleep(1)
        exporter.close()

    thread = threading.Thread(target=follow, name="export", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(2 * GIVE_UP_SECONDS)
