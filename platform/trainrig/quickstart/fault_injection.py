"""Fault injection of the quickstart: kills one worker with SIGKILL halfway through pretraining."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

from trainrig.processes.process_identity import descends_from, kill_if
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

KILLED = "killed_by_quickstart"  # the event's name
LOOK_SECONDS = 0.25


@contextlib.contextmanager
def kill_one_worker(folder: str, after_step: int) -> Iterator[None]:
    """While the block trains in `folder`, kill the last rank once `after_step` is done; only once.

    A run that was killed before, also by an earlier call, is left in peace. So is one that takes no
    step in the block: by now the process numbers of its workers may be those of others.
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
        # A process number means something on its own machine alone.
        assert target["host"] == socket.gethostname(), "the quickstart runs on one machine"
        # The number may be another process's by now, or another's word if others write here.
        if kill_if(target["pid"], lambda pid: descends_from(pid, os.getpid())):
            folder.record(
                KILLED,
                attempt=target["attempt"],
                step=lines[-1]["step"],
                rank=target["rank"],
                target=target["pid"],
            )
        return
