"""Supervisors that are superseded, killed or stopped, and their successors."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from support.launch.attended import CHILD, DEAF, PACE, PATIENCE, WHOLE, waiting
from support.waiting import wait_until

from trainrig.launch.supervise import attempt_start, run_record
from trainrig.launch.supervise.attempt_ends import Limits
from trainrig.launch.supervise.entrypoint import listen
from trainrig.launch.supervise.job_supervisor import JobSupervisor
from trainrig.launch.supervise.metered_cost import HERE, LiveNodes


def test_a_newer_attempt_takes_over_from_one_that_lives(supervise, home):
    first = supervise(home, WHOLE)
    first.until_it_waits()
    second = supervise(home, "print('second')")
    assert second.end()["state"] == "done"
    assert first.end() is None and first.code == 1
    (superseded,) = first.events("superseded")
    assert superseded["by"] == 2
    assert superseded["time"] <= second.events("started")[0]["time"], "two drivers at once"


def test_concurrent_attempts_run_one_child_at_a_time(supervise, local, tmp_path):
    busy = str(tmp_path / "busy")
    held = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    held += f"os.mkdir({busy!r}); time.sleep(0.2); os.rmdir({busy!r})"
    attempts = [supervise(local, held) for _ in range(5)]
    ends = [attempt.end() for attempt in attempts]
    assert ends[-1]["state"] == "done" and ends[-1]["tries"] == 1


def test_an_attempt_that_was_superseded_before_it_began_starts_nothing(supervise, local, tmp_path):
    run = local.create("evaluate", f"{tmp_path}/out")
    old = run.take_attempt("job", "", "", {})
    run.take_attempt("job", "", "", {})
    supervisor = JobSupervisor(run, old, Limits(), ["false"], PACE)
    assert supervisor.supervise() == 1
    assert [e["event"] for e in run.read_events()] == ["superseded"]


LOST = """
cluster = os.environ.get("TRAINRIG_CLUSTER")
end("ClusterReplaced", cluster, 75) if cluster else end("Unfinished", "lost", 75)
"""


def test_a_try_is_bound_to_the_cluster_of_its_attempt_and_not_retried_on_another(
    supervise, local, monkeypatch
):
    def look(nodes):
        nodes.cluster = "7f"
        return [HERE]

    monkeypatch.setattr(LiveNodes, "look", look)
    attempt = supervise(local, LOST)
    ended = attempt.end()
    assert (ended["state"], ended["cause"]) == ("preempted", "lost cluster")
    assert (ended["message"], ended["cluster"], attempt.code) == ("7f", "7f", 75)


@pytest.mark.slow
def test_an_attempt_that_is_stopped_while_it_waits_for_another_never_begins(supervise, local):
    first = supervise(local, DEAF, grace=3.0)
    first.until_it_waits()
    second = supervise(local, "")
    second.run.request_stop()
    ended = second.end()
    assert (ended["state"], ended["tries"], second.code) == ("stopped", 0, 75)
    assert not first.events("superseded"), "it did not wait for that"
    assert first.end() is None


def test_an_attempt_that_was_given_up_before_it_began_starts_nothing(local, tmp_path):
    run = local.create("evaluate", f"{tmp_path}/out")
    attempt = run.take_attempt("job", "", "", {})
    run.record("ended", 1, state="failed", cause="cluster", exit_code=1, message="pending")
    assert JobSupervisor(run, attempt, Limits(), ["false"], PACE).supervise() == 1
    assert [event["event"] for event in run.read_events()] == ["ended"]


def test_an_end_by_another_writer_is_ignored_while_a_supervisor_sends_heartbeats(supervise, local):
    first = supervise(local, WHOLE)
    first.until_it_waits()
    first.run.record("ended", 1, state="failed", cause="cluster", exit_code=1, message="lost")
    second = supervise(local, "")
    second._thread.join(PATIENCE)
    first._thread.join(PATIENCE)
    (superseded,) = first.events("superseded")
    assert superseded["time"] <= second.events("started")[0]["time"]


PROCESS = """
import sys
from trainrig.launch.supervise import run_record
from trainrig.launch.supervise.entrypoint import listen
from trainrig.launch.supervise.job_supervisor import JobSupervisor, Pace
from trainrig.launch.supervise.attempt_ends import Limits
from trainrig.launch.supervise.run_record import Home
home, run, number, lost, *command = sys.argv[1:]
run_record.LOST_SECONDS = float(lost)
record = Home(home).open(run)
supervisor = JobSupervisor(
    record,
    record.read_attempt(int(number)),
    Limits(),
    command,
    Pace(heartbeat=0.1, look=0.05, poll=0.02),
)
listen(supervisor)
sys.exit(supervisor.supervise())
"""


@pytest.fixture
def start_attendant(home, tmp_path):
    """Return a function that starts a job supervisor as a process.

    `start_attendant(code)` returns the process, its run and its child's id. The process takes
    itself for lost after half of `lost` seconds without a heartbeat.
    """
    started = []

    def start(code, lost=run_record.LOST_SECONDS):
        run = home.create("evaluate", f"{tmp_path}/out")
        number = run.take_attempt("job", "", "", {}).number
        child = [sys.executable, "-c", CHILD + code, str(tmp_path)]
        command = [sys.executable, "-c", PROCESS, home.path, run.id, str(number), str(lost), *child]
        started.append(subprocess.Popen(command))
        wait_until(lambda: any(e["event"] == "started" for e in run.read_events(number)))
        wait_until(lambda: run.read_last_heartbeat().get("node_seconds"))
        wait_until(lambda: waiting(tmp_path) == number)
        (event,) = [e for e in run.read_events(number) if e["event"] == "started"]
        return started[-1], run, event["pid"]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_new_attempt_takes_over_after_the_supervisor_died(start_attendant, supervise, home):
    process, run, guard = start_attendant(WHOLE)
    (command,) = psutil.Process(guard).children()
    process.kill()
    process.wait()
    wait_until(lambda: not command.is_running() or command.status() == psutil.STATUS_ZOMBIE)
    assert not any(event["event"] == "ended" for event in run.read_events())
    second = supervise(home, "")
    assert second.end()["state"] == "done"
    (spent,) = [event for event in run.read_events(1) if event["event"] == "spent"]
    assert spent["attended"] > 0 and "local/?/?" in spent["node_seconds"]


@pytest.mark.slow
def test_a_supervisor_that_returns_ends_its_child_and_writes_nothing(
    start_attendant, monkeypatch, supervise, home, tmp_path
):
    # The child ignores SIGTERM, so its grace would be long.
    process, run, _ = start_attendant(DEAF, lost=4.0)
    process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(
        attempt_start, "_may_be_alive", lambda *_: False
    )  # pretends to be another machine
    second = supervise(home, WHOLE)
    wait_until(lambda: waiting(tmp_path) == 2)
    time.sleep(2.1)  # leaves the supervisor away for longer than others tolerate
    process.send_signal(signal.SIGCONT)
    assert process.wait(PATIENCE) == 1
    assert [e["event"] for e in run.read_events(1)] == ["started", "spent", "superseded"]
    assert run.read_state() == "running"
    run.request_stop()
    assert second.end()["state"] == "stopped"


@pytest.mark.slow
def test_a_signal_to_the_supervisor_ends_its_child_gracefully(start_attendant):
    process, run, _ = start_attendant(WHOLE)
    process.terminate()
    assert process.wait(PATIENCE) == 75
    (ended,) = [event for event in run.read_events() if event["event"] == "ended"]
    assert (ended["state"], ended["forced"]) == ("preempted", False)


def test_the_supervisors_own_signals_are_stop_requests(supervise, local):
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    attended = supervise(local, WHOLE)
    try:
        listen(attended.supervisor)
        attended.until_it_waits()
        os.kill(os.getpid(), signal.SIGINT)
        assert attended.end()["state"] == "stopped"
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
