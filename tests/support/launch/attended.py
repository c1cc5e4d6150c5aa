"""Supervised attempts whose children are real processes, for tests of supervisors."""

import sys
import threading
from pathlib import Path
from typing import Any

from support.waiting import wait_until
from trainrig.launch.supervise.attempt_ends import Limits
from trainrig.launch.supervise.job_supervisor import JobSupervisor, Pace
from trainrig.launch.supervise.run_record import Home, RunRecord

PATIENCE = 60.0  # s: ends a broken test
PACE = Pace(heartbeat=0.1, look=0.05, poll=0.02)
# Source of the children. `trial` counts them, and `end` ends as a trainrig command does.
CHILD = """
import json, os, signal, sys, time
place = sys.argv[1]
with open(place + "/tries", "a") as file: file.write("x")
trial = os.path.getsize(place + "/tries")
def end(kind, message, code):
    with open(os.environ["TRAINRIG_OUTCOME"], "w") as file:
        json.dump({"kind": kind, "message": message, "exit_code": code}, file)
    sys.exit(code)
def whole(*_): end("Unfinished", "step 3 of 9 is saved", 75)
def wait():
    with open(place + "/waits", "a") as file: file.write("x")
    while True: time.sleep(0.02)
"""
WHOLE = "signal.signal(signal.SIGTERM, whole); wait()"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); wait()"


class Attended:
    """An attempt at a run, supervised in a thread."""

    def __init__(
        self, home: Home, place: Path, code: str, verb: str = "evaluate", **limits: Any
    ) -> None:
        self.run = home.create(verb, f"{place}/out")
        settings = Limits(**({"back_off": 0.05, "longest_back_off": 0.1} | limits))
        given = settings.model_dump(mode="json")
        self.attempt = self.run.take_attempt("job", "http://here", "", given)
        command = [sys.executable, "-c", CHILD + code, str(place)]
        self.supervisor = JobSupervisor(self.run, self.attempt, settings, command, PACE)
        self.code: int | None = None
        self.place = place
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    def _supervise(self) -> None:
        self.code = self.supervisor.supervise()

    def end(self) -> dict[str, Any] | None:
        """Return the event `ended`, or None."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        found = self.events("ended")
        assert len(found) <= 1
        return found[0] if found else None

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [e for e in self.run.read_events(self.attempt.number) if e["event"] == kind]

    def until_state(self, state: str) -> None:
        wait_until(lambda: self.run.read_state() == state)

    def until_it_waits(self) -> None:
        wait_until(lambda: waiting(self.place))


def waiting(place: Path) -> int:
    """Return how many children have started to wait."""
    path = Path(place, "waits")
    return path.stat().st_size if path.exists() else 0


def log_of(run: RunRecord) -> str:
    return b"\n".join(run.open_tail().read_new_lines())
