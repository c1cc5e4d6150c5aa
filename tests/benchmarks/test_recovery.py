"""Time from a fault or a move to the next step, by phase, and goodput under steady faults.

A model of about a million parameters runs on two workers of one thread each. The figures need an
idle machine: most of the time is Python starting and importing torch, once for each worker.
"""

import itertools
import os
import signal
import statistics
import time
from pathlib import Path

import pytest
from support import faults, trouble

from trainrig.errors import Unfinished
from trainrig.train.elastic import trainer
from trainrig.train.run import metrics, progress

pytestmark = [pytest.mark.bench, pytest.mark.ray, pytest.mark.timeout(3600)]
REPEATS = int(os.environ.get("TRAINRIG_REPEATS", "5"))
MINUTES = float(os.environ.get("TRAINRIG_GOODPUT_MINUTES", "20"))
HANG_SECONDS = 3.0
ENDLESS = 100_000  # steps; each measurement stops its run
# The phases between a fault and the step after it, and the event that ends each.
PHASES = {
    "seen": "attempt_failed",
    "moved off": "attempt_stopped",
    "decided": "attempt_started",
    "processes up": "worker_started",
    "loaded": "numerics",
}


@pytest.fixture
def endless(make_job, tmp_path):
    """Return a job of a million parameters that runs until it is stopped, saving every second."""
    job = make_job(
        tmp_path / "run",
        model={"layers": 4, "channels": 144, "heads": 4, "kv_heads": 4},
        batches={"epochs": 1e6},
        training={
            "steps": ENDLESS,
            "checkpoints": {"every": 20, "keep": 2},
            "held_out": {"rows": 0},
            "faults": {"hang_seconds": HANG_SECONDS, "max_restarts": 99},
        },
    )
    return trouble.slowed(job, job.folder, seconds=0.01)


class Recoveries:
    """Times from each fault of a run to the next step."""

    def __init__(self, events):
        self._events = events
        self.rows = []

    def measure(self, fault):
        """Inject `fault` while steps are taken, and wait until they are taken again."""
        attempts = len(self._events.all("attempt_started"))
        self._events.wait("checkpoint", len(self._events.all("checkpoint")) + 1)
        began = time.time()
        fault()
        self._events.wait("first_step", len(self._events.all("first_step")) + 1)
        number = self._events.all("attempt_started")[attempts]["attempt"]
        lines = list(metrics.read_lines(self._events.folder.path))
        first = min((line for line in lines if line["attempt"] == number), key=_step)
        before = max((line for line in lines if line["attempt"] == number - 1), key=_step)
        times = {}
        cursor = began
        for phase, kind in PHASES.items():
            found = [
                e["time"] for e in self._events.all(kind) if e["attempt"] in (number, number - 1)
            ]
            found = [when for when in found if when >= began]
            if found:
                times[phase] = max(found) - cursor
                cursor = max(found)
        times["first step"] = first["time"] - cursor
        redone = before["step"] - first["step"] + 1
        self.rows.append({"total": first["time"] - began, "redone": redone, **times})

    def report(self, what, most):
        """Print medians and extremes; require the worst total to be below `most` seconds."""
        totals = [row["total"] for row in self.rows]
        names = [*PHASES, "first step"]
        usual = {name: statistics.median(row.get(name, 0.0) for row in self.rows) for name in names}
        slowest = max(self.rows, key=lambda row: row["total"])
        print(
            f"\n{what}: {statistics.median(totals):.1f} s to the first new step "
            f"({min(totals):.1f}–{max(totals):.1f}, n = {len(totals)}; wanted: {most:g}); "
            f"{_told(usual, names)}; the slowest: {_told(slowest, names)}; "
            f"steps redone: {sorted(row['redone'] for row in self.rows)}"
        )
        return max(totals) <= most


def _told(row, names):
    return ", ".join(f"{name} {row[name]:.2f}" for name in names if row.get(name))


def _step(line):
    return line["step"]


def train_aside(job, workers, do):
    """Call `do(events)` while the job trains in another thread, then stop the job."""
    events = faults.Events(job.folder)

    def run():
        with pytest.raises(Unfinished):
            trainer.run(job, workers)

    aside = faults.Aside(run)
    events.wait("first_step")
    do(events)
    Path(job.folder, "stop").touch()
    aside.end()


@pytest.mark.parametrize(
    ("what", "most"), [("kill", 10.0), ("hang", HANG_SECONDS + 6.0), ("controller", 15.0)]
)
def test_a_fault_of_a_process(one_ray, endless, what, most):
    ranks = itertools.cycle([1, 0])

    def fault(events):
        if what == "controller":
            assert faults.kill_actors("TrainController")
        else:
            number = signal.SIGKILL if what == "kill" else signal.SIGSTOP
            os.kill(events.ranks()[next(ranks)], number)

    reached = []

    def do(events):
        recoveries = Recoveries(events)
        for _ in range(REPEATS):
            recoveries.measure(lambda: fault(events))
        reached.append(recoveries.report(what, most))

    train_aside(endless, 2, do)
    assert reached == [True]


def test_time_to_the_first_step_of_a_command_and_after_a_kill(start_driver, endless, short_folder):
    """Measure from the start of the process, which starts Ray, to its first recorded step."""
    events = faults.Events(endless.folder)
    phases = ("attempt_started", "worker_started", "first_step")
    for nth, after in enumerate(("", " after it was killed")):
        begun = time.time()
        driver = start_driver(endless, 2)
        events.wait("first_step", nth + 1)
        if nth == 0:
            driver.kill()
        since = {}
        for name in phases:
            since[name] = min(e["time"] for e in events.all(name) if e["time"] >= begun) - begun
        print(f"\nfirst command{after}: " + ", ".join(f"{n} {t:.1f} s" for n, t in since.items()))
        assert since["first_step"] <= 30.0  # 27 s before this was optimised


def test_goodput_at_a_kill_a_minute(one_ray, endless):
    def do(events):
        ranks = itertools.cycle([1, 0])
        end = time.monotonic() + 60 * MINUTES
        while time.monotonic() < end:
            time.sleep(60.0)
            os.kill(events.ranks()[next(ranks)], signal.SIGKILL)
            events.wait("first_step", len(events.all("first_step")) + 1)

    train_aside(endless, 2, do)
    spent = progress.measure_goodput(endless.folder)
    terms = ", ".join(f"{name} {value:.1f} s" for name, value in vars(spent).items() if value)
    print(f"\ngoodput at one kill a minute for {MINUTES:g} minutes: {spent.share:.1%} ({terms})")
    assert spent.share >= 0.8


def test_nodes_that_go_come_and_are_drained(several_raylets, endless):
    reached = []

    def do(events):
        shrink, grow, drain = (Recoveries(events) for _ in range(3))
        for _ in range(REPEATS):
            shrink.measure(several_raylets.die)
            grow.measure(several_raylets.come)
            drain.measure(several_raylets.drain)
            several_raylets.die()  # after the announced time; nothing runs on that node any more
            several_raylets.come()
            events.wait("first_step", len(events.all("first_step")) + 1)
        reached.extend(
            [shrink.report("shrink", 15.0), grow.report("grow", 25.0), drain.report("drain", 15.0)]
        )
        for moves in (grow, drain):
            assert all(row["redone"] == 0 for row in moves.rows)

    train_aside(endless, (1, 2), do)
    assert reached == [True] * 3
