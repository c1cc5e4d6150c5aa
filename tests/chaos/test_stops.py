"""T6: a run that is asked to stop at any time ends with a valid checkpoint and resumes exactly."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from support import faults, trouble

from trainrig.errors import Unfinished
from trainrig.train.elastic import trainer

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]


def stop_at_random(job, dice, how):
    """Train, ask to stop at a random moment, and return the step of the stop, or None.

    A run that ends before the request gets none: the next attempt would be stopped instead.
    """
    events = faults.Events(job.folder)
    before = len(events.all("first_step"))
    late = threading.Event()
    one_at_a_time = threading.Lock()
    waits = dice.random() < 0.8
    moment = dice.uniform(0.0, 1.0)

    def ask():
        while waits and not late.is_set() and len(events.all("first_step")) <= before:
            late.wait(0.02)
        late.wait(moment)
        with one_at_a_time:
            if late.is_set():
                return
            if how == "file":
                Path(job.folder, "stop").touch()
            else:
                os.kill(os.getpid(), how)

    # Signals that arrive as the run ends must not end the tests.
    handlers = [(sign, signal.signal(sign, lambda *_: None)) for sign in HOWS if sign != "file"]
    aside = faults.Aside(ask)
    try:
        trainer.run(job, 2)
    except Unfinished as stopped:
        assert "run the same command to continue" in str(stopped)
        return events.all("run_stopped")[-1]["step"]
    finally:
        with one_at_a_time:
            late.set()
        aside.end()
        for sign, handler in handlers:
            signal.signal(sign, handler)
    Path(job.folder, "stop").unlink(missing_ok=True)  # no attempt was left to see the file
    return None


HOWS = (signal.SIGTERM, "file", signal.SIGINT)


@pytest.mark.timeout(600)
def test_a_run_stopped_ten_times_gives_the_same_results(
    one_ray, undisturbed, assert_equal, tmp_path
):
    straight = undisturbed(160)
    # The request comes within 1 s, ten of these steps, and is noticed soon after. 160 steps outlast
    # ten such stops, even on a slow machine. With steps of 20 ms, some runs had none left for the
    # last stop.
    job = trouble.slowed(straight, str(tmp_path / "run"), seconds=0.1)
    dice = random.Random(6)
    stops = [stop_at_random(job, dice, HOWS[number % 3]) for number in range(10)]
    assert None not in stops
    assert not Path(job.folder, "stop").exists()
    trainer.run(job, 2)
    resumed = [attempt.resumed_step for attempt in faults.Events(job.folder).folder.read_attempts()]
    assert resumed == [0, *stops]  # no step is repeated
    assert_equal(job, straight)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_ctrl_c_at_a_terminal_ends_a_driver_as_unfinished_and_its_ray_lives_until_then(
    start_driver, undisturbed, assert_equal, tmp_path
):
    straight = undisturbed(40)
    job = trouble.slowed(straight, str(tmp_path / "run"))
    events = faults.Events(job.folder)
    first = start_driver(job, 2)
    events.wait("first_step")
    os.killpg(first.pid, signal.SIGINT)  # acts like a terminal: Ray's processes get the signal too
    assert first.wait(timeout=300) == 75
    assert "stopped by Ctrl-C; step" in first.stderr.read().splitlines()[-1]
    stopped = events.all("run_stopped")[0]["step"]
    assert stopped > 0
    assert start_driver(job, 2).wait(timeout=300) == 0
    assert [attempt.resumed_step for attempt in events.folder.read_attempts()] == [0, stopped]
    assert_equal(job, straight)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_hundred_stops_at_random_instants(
    one_ray, undisturbed, assert_equal, write_result, tmp_path
):
    straight = undisturbed(400)
    seed = int(time.time())
    dice = random.Random(seed)
    stops = []
    runs = 0
    while len(stops) < 100:
        runs += 1
        job = trouble.slowed(straight, str(tmp_path / f"run-{runs}"))
        while len(stops) < 100:
            how = dice.choice(HOWS)
            step = stop_at_random(job, dice, how)
            if step is None:
                break
            stops.append(step)
        trainer.run(job, 2)
        assert_equal(job, straight)
        failed = faults.Events(job.folder).all("attempt_failed")
        assert not failed, failed
    write_result(
        "stops.json",
        {"stops": len(stops), "runs": runs, "seed": seed, "steps": stops, "byte_equal": True},
    )
