"""T1: a run with kills at any point gives the same results as an undisturbed run."""

import contextlib
import dataclasses
import os
import random
import signal
import time

import psutil
import pytest
import ray
from support import faults, trouble

from trainrig.train.elastic import trainer
from trainrig.train.run import progress

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]


WHATS = ("rank 0", "rank 1", "agent 0", "agent 1", "controller", "fork server")


def kill_at_random(events, dice, what):
    """Kill one of WHATS at a random moment after the first step of an attempt."""
    failed = len(events.all("attempt_failed"))
    events.wait_for_a_step()
    time.sleep(dice.uniform(0.0, 0.5))
    kind, _, rank = what.partition(" ")
    if what == "controller":
        faults.kill_actors("TrainController")
    elif what == "fork server":
        faults.kill_fork_servers()
    else:
        pids = events.ranks("pid" if kind == "rank" else "agent")
        # the process may just have died of another cause
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[int(rank)], signal.SIGKILL)
    events.wait("attempt_failed", failed + 1)


@pytest.mark.timeout(600)
def test_a_run_with_random_kills_gives_the_same_results(
    one_ray, undisturbed, assert_equal, tmp_path
):
    straight = undisturbed(40)
    job = trouble.slowed(straight, str(tmp_path / "run"))
    save = trouble.DeadlySave(job.make_batches, step=8, marker=str(tmp_path / "in save"))
    job = dataclasses.replace(job, make_batches=save)
    events = faults.Events(job.folder)
    dice = random.Random(20)

    def disturb():
        events.wait("attempt_failed")  # the rank died in its save
        for what in ("controller", "agent 1"):
            kill_at_random(events, dice, what)

    aside = faults.Aside(disturb)
    outcome = trainer.run(job, 2)
    aside.end()
    assert outcome.restarts == 3
    problems = [event["problem"] for event in events.all("attempt_failed")]
    assert problems[0].startswith("the process of rank 0 died")
    assert problems[1].startswith("Ray's controller of the attempt failed")
    assert problems[2].startswith("the process of rank 1 died")
    assert_equal(job, straight)
    spent = progress.measure_goodput(job.folder)
    stamps = [event["time"] for event in events.folder.read_events() if "attempt" in event]
    assert spent.wall == pytest.approx(max(stamps) - min(stamps), abs=0.01)
    assert spent.lost > 0 and spent.restart > spent.detection > 0


@pytest.mark.timeout(600)
def test_a_hanging_rank_is_killed_with_the_others(one_ray, undisturbed, assert_equal, tmp_path):
    straight = undisturbed(40)
    job = trouble.slowed(straight, str(tmp_path / "run"))
    still = trouble.Standing(job.make_batches, step=10, marker=str(tmp_path / "stood"))
    dead = trouble.DeadlyEvaluation(job.make_held_out, marker=str(tmp_path / "in evaluation"))
    job = dataclasses.replace(job, make_batches=still, make_held_out=dead)
    outcome = trainer.run(job, 2)
    events = faults.Events(job.folder)
    assert outcome.restarts == 2
    assert (tmp_path / "stood").exists() and (tmp_path / "in evaluation").exists()
    (hang,) = events.all("hang_seen")
    assert "hangs: no progress" in hang["problem"]
    assert hang["problem"].endswith("the others wait for rank 1")
    node = next(e["node"] for e in events.all("attempt_failed") if e["seen_by"] == "heartbeats")
    assert node in {ray_node["NodeID"] for ray_node in ray.nodes()}
    assert_equal(job, straight)


@pytest.mark.timeout(600)
def test_worker_agents_outlive_their_ranks_unless_one_does_not_answer(
    one_ray, undisturbed, assert_equal, tmp_path
):
    straight = undisturbed(40)
    job = trouble.slowed(straight, str(tmp_path / "run"), seconds=0.1)
    events = faults.Events(job.folder)
    agents = []
    ranks = []

    def fail(fault):
        failed = len(events.all("attempt_failed"))
        events.wait_for_a_step()
        events.wait("checkpoint", len(events.all("checkpoint")) + 1)
        agents.append(events.ranks("agent"))
        ranks.append(events.ranks())
        fault()
        events.wait("attempt_failed", failed + 1)

    def kill_one_rank_while_another_hangs():
        os.kill(ranks[-1][1], signal.SIGSTOP)
        os.kill(ranks[-1][0], signal.SIGKILL)

    def kill_one_rank_and_the_coordinator():
        faults.kill_actors("Coordinator")
        os.kill(ranks[-1][1], signal.SIGKILL)

    def kill_one_rank_while_a_worker_agent_hangs():
        os.kill(agents[-1][0], signal.SIGSTOP)
        os.kill(ranks[-1][1], signal.SIGKILL)

    def disturb():
        fail(kill_one_rank_while_another_hangs)
        fail(kill_one_rank_and_the_coordinator)
        fail(kill_one_rank_while_a_worker_agent_hangs)

    aside = faults.Aside(disturb)
    outcome = trainer.run(job, 2)
    aside.end()
    assert outcome.restarts == 3
    agents.append(events.ranks("agent"))
    assert agents[0] == agents[1]
    assert not set(ranks[0].values()) & set(ranks[1].values())
    assert not set(agents[2].values()) & set(agents[3].values())
    assert not any(psutil.pid_exists(pid) for pid in agents[2].values())
    assert_equal(job, straight)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_run_whose_driver_is_killed_is_resumed(start_driver, undisturbed, assert_equal, tmp_path):
    straight = undisturbed(40)
    job = trouble.slowed(straight, str(tmp_path / "run"))
    events = faults.Events(job.folder)
    first = start_driver(job, 2)
    events.wait("checkpoint")
    first.kill()
    first.wait()
    second = start_driver(job, 2)
    assert second.wait(timeout=300) == 0, second.stderr.read()
    assert [attempt.resumed_step for attempt in events.folder.read_attempts()][1] >= 4
    assert_equal(job, straight)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_kills_at_random_instants(
    one_ray, undisturbed, assert_equal, write_result, tmp_path
):
    """Kill once in an evaluation and once in a save, then random processes at random times."""
    seed = int(time.time())
    dice = random.Random(seed)
    straight = undisturbed(240)
    job = trouble.slowed(straight, str(tmp_path / "run"))
    save = trouble.DeadlySave(job.make_batches, step=8, marker=str(tmp_path / "in save"))
    dead = trouble.DeadlyEvaluation(job.make_held_out, marker=str(tmp_path / "in evaluation"))
    job = dataclasses.replace(job, make_batches=save, make_held_out=dead)
    events = faults.Events(job.folder)
    plan = [dice.choice(WHATS) for _ in range(18)]

    def disturb():
        # Fails in the evaluation at step 6 and in the save at step 8.
        events.wait("attempt_failed", 2)
        for what in plan:
            kill_at_random(events, dice, what)

    aside = faults.Aside(disturb)
    outcome = trainer.run(job, 2)
    aside.end()
    assert_equal(job, straight)
    spent = progress.measure_goodput(job.folder)
    write_result(
        "kills.json",
        {
            "kills": ["rank 0 in an evaluation", "rank 0 in a save", *plan],
            "restarts": outcome.restarts,
            "seed": seed,
            "steps": 240,
            "byte_equal": True,
            "seconds": {name: round(value, 1) for name, value in vars(spent).items()},
        },
    )
