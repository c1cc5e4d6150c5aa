"""Fault injection of the quickstart: one worker is killed halfway through pretraining."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

from trainrig.processes.process_identity import descends_from, kill_if
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
